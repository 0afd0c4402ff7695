// What layers are made of: copies of rows, weights packed by all threads, layer norm of a row, sums of rows.
#pragma once

#include <cmath>

#include "hpcgnn/base/team.h"
#include "hpcgnn/workspace.h"

namespace hpcgnn {

template <typename Real> inline void copy_row(Real *to, const Real *from, int64_t width) {
  constexpr int L = simd::kLanes<Real>;
  int64_t j = 0;
  for (; j + L <= width; j += L) {
    simd::store(to + j, simd::load(from + j));
  }
  if (j < width) {
    simd::store_first(to + j, simd::load_first(from + j, static_cast<int>(width - j)), static_cast<int>(width - j));
  }
}

// Asks for a row that will be read soon.
template <typename Real> inline void prefetch_row(const Real *row, int64_t width) {
  for (int64_t byte = 0; byte < width * int64_t(sizeof(Real)); byte += 64) {
    __builtin_prefetch(reinterpret_cast<const char *>(row) + byte);
  }
}

// Calls body(begin, size) for pieces of a register's size that cover [0, width), the last one overlapping what was done
// before: a rest would not vectorise. The body must write what it does not read.
template <typename Real, typename Body> inline void in_registers(int64_t width, const Body &body) {
  constexpr int64_t L = simd::kLanes<Real>;
  if (width < L) {
    body(0, width);
    return;
  }
  for (int64_t begin = 0; begin + L <= width; begin += L) {
    body(begin, L);
  }
  if (width % L != 0) {
    body(width - L, L);
  }
}

template <typename Real> struct PackedBuffer {
  Buffer<Real> memory;
  gemm::Packed<Real> packed;
  PackedBuffer(int64_t depth, int64_t width)
      : memory(gemm::Packed<Real>::size(depth, width)), packed{memory.data(), depth, width} {}

  void fill(const Team &team, gemm::Rows<const Real> from) {
    const Range part = team.share(packed.panels());
    for (int64_t panel = part.begin; panel < part.end; ++panel) {
      gemm::pack(packed, from, panel);
    }
  }
  void fill_transposed(const Team &team, gemm::Rows<const Real> from) {
    const Range part = team.share(packed.panels());
    for (int64_t panel = part.begin; panel < part.end; ++panel) {
      gemm::pack_transposed(packed, from, panel);
    }
  }
};

template <typename Real>
inline void normalize(const Real *hidden, int64_t width, double eps, const Real *weight, const Real *bias,
                      Real *statistics, Real *out) {
  Real mean = 0, variance = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t j = 0; j < width; ++j) {
    mean += hidden[j];
  }
  mean /= static_cast<Real>(width);
#pragma omp simd reduction(+ : variance)
  for (int64_t j = 0; j < width; ++j) {
    variance += (hidden[j] - mean) * (hidden[j] - mean);
  }
  const Real scale = Real(1) / std::sqrt(variance / static_cast<Real>(width) + static_cast<Real>(eps));
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    out[j] = (hidden[j] - mean) * scale * weight[j] + bias[j];
  }
  statistics[0] = mean;
  statistics[1] = scale;
}

// The gradient [Z] before relu and dropout; adds to those of the norm's weight and bias.
template <typename Real>
inline void normalize_backward(const Real *gradient, const Real *hidden, const Real *statistics, int64_t width,
                               const Real *weight, Real kept, Real *out, Real *grad_weight, Real *grad_bias) {
  const Real mean = statistics[0], scale = statistics[1];
  Real sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t j = 0; j < width; ++j) {
    const Real normal = (hidden[j] - mean) * scale, g = gradient[j] * weight[j];
    sum += g;
    product += g * normal;
    grad_weight[j] += gradient[j] * normal;
    grad_bias[j] += gradient[j];
  }
  sum /= static_cast<Real>(width);
  product /= static_cast<Real>(width);
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    const Real normal = (hidden[j] - mean) * scale;
    const Real g = (gradient[j] * weight[j] - sum - normal * product) * scale * kept;
    out[j] = hidden[j] > Real(0) ? g : Real(0);
  }
}

template <typename Real> inline void add_row(const Real *row, int64_t width, Real *sum) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    sum[j] += row[j];
  }
}

// sum [width] = the given rows added up, in their order; at least one.
template <typename Real>
inline void sum_rows(gemm::Rows<const Real> rows, const int64_t *index, int64_t count, int64_t width, Real *sum) {
  copy_row(sum, rows.at(index[0]), width);
  for (int64_t i = 1; i < count; ++i) {
    add_row(rows.at(index[i]), width, sum);
  }
}

template <typename Real> inline void add_rows(gemm::Rows<const Real> rows, int64_t count, int64_t width, Real *sum) {
  for (int64_t i = 0; i < count; ++i) {
    add_row(rows.at(i), width, sum);
  }
}

} // namespace hpcgnn
