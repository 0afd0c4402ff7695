// Small matrix products of one thread, for blocks of rows that stay in the cache. A tile of C lives in registers: kRows
// rows of up to kVectors registers (Goto and van de Geijn: Anatomy of high-performance matrix multiplication, 2008,
// without its outer loops, which these sizes do not need). A sum runs over the depth in order, whatever the tile, so a
// row's result does not depend on its place in the block.
#pragma once

#include <algorithm>

#include "hpcgnn/base/simd.h"

namespace hpcgnn::gemm {

using simd::kLanes;
using simd::Vector;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRows = 8; // 24 of 32 registers accumulate
#else
constexpr int kRows = 4; // 12 of 16
#endif
constexpr int kVectors = 3;

// Rows of a matrix, `stride` numbers apart.
template <typename Real> struct Rows {
  Real *data;
  int64_t stride;
  Real *at(int64_t row) const { return data + row * stride; }
  Rows from(int64_t row, int64_t column = 0) const { return {data + row * stride + column, stride}; }
  operator Rows<const Real>() const { return {data, stride}; }
};

// Where a product goes: C = A B (+ bias a column) (+ C).
template <typename Real> struct Target {
  Rows<Real> rows;
  const Real *bias = nullptr;
  bool add = false;
};

template <typename Real, int M, int V, bool AcrossA>
inline void tile(Rows<const Real> a, const Real *b, int64_t b_stride, int64_t depth, const Target<Real> &target,
                 int64_t row, int64_t column, int last) {
  constexpr int L = kLanes<Real>;
  Vector<Real> sum[M][V] = {};
  for (int64_t k = 0; k < depth; ++k, b += b_stride) {
    Vector<Real> right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      right[v] = simd::load(b + v * L);
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const Vector<Real> left = simd::broadcast(AcrossA ? a.data[k * a.stride + r] : a.data[r * a.stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = simd::multiply_add(left, right[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    Real *to = target.rows.at(row + r) + column;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const int lanes = v + 1 < V ? L : last;
      Vector<Real> value = sum[r][v];
      if (target.bias != nullptr) {
        value += simd::load_first(target.bias + column + v * L, lanes);
      }
      if (target.add) {
        value += simd::load_first(to + v * L, lanes);
      }
      simd::store_first(to + v * L, value, lanes);
    }
  }
}

// Tiles of M rows while there are as many, then of fewer. Advances a and row.
template <typename Real, int M, int V, bool AcrossA>
inline void column_of_tiles(Rows<const Real> a, int64_t m, const Real *b, int64_t b_stride, int64_t depth,
                            const Target<Real> &target, int64_t row, int64_t column, int last) {
  for (; m >= M; m -= M, row += M, a.data += AcrossA ? M : M * a.stride) {
    tile<Real, M, V, AcrossA>(a, b, b_stride, depth, target, row, column, last);
  }
  if constexpr (M > 1) {
    if (m > 0) {
      column_of_tiles<Real, M / 2, V, AcrossA>(a, m, b, b_stride, depth, target, row, column, last);
    }
  }
}

template <typename Real, bool AcrossA>
void panel(Rows<const Real> a, int64_t m, const Real *b, int64_t b_stride, int64_t width, int64_t depth,
           const Target<Real> &target, int64_t column) {
  static_assert(kVectors == 3, "one case a number of registers");
  const int vectors = static_cast<int>(simd::registers<Real>(width));
  const int last = static_cast<int>(width - (vectors - 1) * kLanes<Real>);
  if (vectors == 3) {
    column_of_tiles<Real, kRows, 3, AcrossA>(a, m, b, b_stride, depth, target, 0, column, last);
  } else if (vectors == 2) {
    column_of_tiles<Real, kRows, 2, AcrossA>(a, m, b, b_stride, depth, target, 0, column, last);
  } else {
    column_of_tiles<Real, kRows, 1, AcrossA>(a, m, b, b_stride, depth, target, 0, column, last);
  }
}

template <typename Real> constexpr int64_t kPanel = kVectors * kLanes<Real>;

// A right-hand side [depth, width] in panels of kPanel columns, each contiguous and padded to whole registers.
template <typename Real> struct Packed {
  Real *data;
  int64_t depth, width;

  static int64_t size(int64_t depth, int64_t width) { return depth * simd::padded<Real>(width); }
  int64_t panels() const { return (width + kPanel<Real> - 1) / kPanel<Real>; }
  int64_t columns(int64_t panel) const { return std::min(kPanel<Real>, width - panel * kPanel<Real>); }
  Real *at(int64_t panel) const { return data + panel * kPanel<Real> * depth; }
};

// Fills one panel of `to` from B [depth, width].
template <typename Real> void pack(const Packed<Real> &to, Rows<const Real> b, int64_t panel) {
  const int64_t columns = to.columns(panel), stride = simd::padded<Real>(columns);
  Real *out = to.at(panel);
  for (int64_t k = 0; k < to.depth; ++k, out += stride) {
    std::copy_n(b.at(k) + panel * kPanel<Real>, columns, out);
    std::fill(out + columns, out + stride, Real(0));
  }
}

// Fills one panel of `to` from the transpose of B [width, depth].
template <typename Real> void pack_transposed(const Packed<Real> &to, Rows<const Real> b, int64_t panel) {
  const int64_t columns = to.columns(panel), stride = simd::padded<Real>(columns);
  constexpr int64_t kBlock = 16;
  for (int64_t begin = 0; begin < to.depth; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, to.depth);
    for (int64_t column = 0; column < stride; ++column) {
      Real *out = to.at(panel) + column;
      const Real *row = column < columns ? b.at(panel * kPanel<Real> + column) : nullptr;
      for (int64_t k = begin; k < end; ++k) {
        out[k * stride] = row ? row[k] : Real(0);
      }
    }
  }
}

// C [m, width] from A [m, depth] and rows [first, first + depth) of a packed B.
template <typename Real>
void multiply(Rows<const Real> a, int64_t m, const Packed<Real> &b, int64_t first, int64_t depth,
              const Target<Real> &target) {
  for (int64_t p = 0; p < b.panels(); ++p) {
    const int64_t columns = b.columns(p), stride = simd::padded<Real>(columns);
    panel<Real, false>(a, m, b.at(p) + first * stride, stride, columns, depth, target, p * kPanel<Real>);
  }
}

// The same with all rows of B.
template <typename Real>
void multiply(Rows<const Real> a, int64_t m, const Packed<Real> &b, const Target<Real> &target) {
  multiply(a, m, b, 0, b.depth, target);
}

// The same with plain rows B [depth, width], which must be readable up to whole registers.
template <typename Real>
void multiply(Rows<const Real> a, int64_t m, Rows<const Real> b, int64_t width, int64_t depth,
              const Target<Real> &target) {
  for (int64_t column = 0; column < width; column += kPanel<Real>) {
    panel<Real, false>(a, m, b.data + column, b.stride, std::min(kPanel<Real>, width - column), depth, target, column);
  }
}

// C [m, width] from the transpose of A [depth, m] and plain rows B [depth, width], readable up to whole registers:
// a weight's gradient from those of the products and the rows.
template <typename Real>
void multiply_transposed(Rows<const Real> a, int64_t m, Rows<const Real> b, int64_t width, int64_t depth,
                         const Target<Real> &target) {
  for (int64_t column = 0; column < width; column += kPanel<Real>) {
    panel<Real, true>(a, m, b.data + column, b.stride, std::min(kPanel<Real>, width - column), depth, target, column);
  }
}

} // namespace hpcgnn::gemm
