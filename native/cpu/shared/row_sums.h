// Sums of rows that lie anywhere: held in registers, added in the order of the list, rows asked for ahead of time.
#pragma once

#include "cpu/shared/layer_parts.h"

namespace hpcgnn {

constexpr int64_t kAhead = 8;            // rows
constexpr int64_t kFewNumbers = 1 << 14; // not worth a second thread

// Takes rows as they are; Weighted multiplies the row of an entry by the entry's weight.
struct Plain {
  template <typename Vector> Vector operator()(int64_t, Vector row) const { return row; }
};

template <typename Real> struct Weighted {
  const Real *weight; // [E]
  template <typename Vector> Vector operator()(int64_t entry, Vector row) const { return row * weight[entry]; }
};

// V registers of a sum, the last of them `last` lanes wide, from column `begin` on.
template <typename Real, int V, typename Row, typename Weigh>
inline void sum_columns(Range entries, const Row &row, const Weigh &weigh, int64_t begin, int last, Real *sum,
                        bool add) {
  constexpr int L = simd::kLanes<Real>;
  simd::Vector<Real> value[V] = {};
  if (add) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      value[v] = simd::load_first(sum + begin + v * L, v + 1 < V ? L : last);
    }
  }
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const Real *from = row(entry) + begin;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      value[v] += weigh(entry, v + 1 < V ? simd::load(from + v * L) : simd::load_first(from + v * L, last));
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    simd::store_first(sum + begin + v * L, value[v], v + 1 < V ? L : last);
  }
}

// sum [width] = (+ sum) the rows row(entry) of the entries, weighed; `last`: the last entry that may be asked for.
template <typename Real, typename Row, typename Weigh = Plain>
inline void sum_of_rows(Range entries, int64_t last, int64_t width, const Row &row, Real *sum, bool add = false,
                        const Weigh &weigh = {}) {
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    prefetch_row(row(std::min(entry + kAhead, last)), width);
  }
  constexpr int L = simd::kLanes<Real>, kMost = 8;
  for (int64_t begin = 0; begin < width; begin += kMost * L) {
    const int64_t rest = std::min<int64_t>(width - begin, kMost * L);
    const int lanes = static_cast<int>(rest - (simd::registers<Real>(rest) - 1) * L);
    switch (simd::registers<Real>(rest)) {
    case 8:
      sum_columns<Real, 8>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 7:
      sum_columns<Real, 7>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 6:
      sum_columns<Real, 6>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 5:
      sum_columns<Real, 5>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 4:
      sum_columns<Real, 4>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 3:
      sum_columns<Real, 3>(entries, row, weigh, begin, lanes, sum, add);
      break;
    case 2:
      sum_columns<Real, 2>(entries, row, weigh, begin, lanes, sum, add);
      break;
    default:
      sum_columns<Real, 1>(entries, row, weigh, begin, lanes, sum, add);
    }
  }
}

} // namespace hpcgnn
