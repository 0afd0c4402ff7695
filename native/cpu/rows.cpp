// Gather, scatter and sums of rows on the CPU. Sums are taken per target in the order of its index list: deterministic.
#include "hpcgnn/rows.h"

#include <algorithm>
#include <cstring>

namespace hpcgnn {

void gather_rows(const uint8_t *table, const int64_t *index, int64_t n, int64_t row_bytes, uint8_t *out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * row_bytes > (1 << 16))
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < 0) {
      std::memset(out + i * row_bytes, 0, row_bytes);
    } else {
      std::memcpy(out + i * row_bytes, table + index[i] * row_bytes, row_bytes);
    }
  }
}

void scatter_rows(uint8_t *table, const int64_t *index, const uint8_t *rows, int64_t n, int64_t row_bytes,
                  int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * row_bytes > (1 << 16))
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] >= 0) {
      std::memcpy(table + index[i] * row_bytes, rows + i * row_bytes, row_bytes);
    }
  }
}

template <typename Real>
void segment_sum_rows(const Real *rows, const int64_t *indptr, const int64_t *order, int64_t segments, int64_t width,
                      Real *out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && segments * width > (1 << 14))
  for (int64_t segment = 0; segment < segments; ++segment) {
    Real *sum = out + segment * width;
    std::fill(sum, sum + width, Real(0));
    for (int64_t j = indptr[segment]; j < indptr[segment + 1]; ++j) {
      const Real *row = rows + order[j] * width;
#pragma omp simd
      for (int64_t column = 0; column < width; ++column) {
        sum[column] += row[column];
      }
    }
  }
}

template <typename Real>
void count_reaching(const Real *scores, const int64_t *row, const Real *threshold, int64_t n, int64_t width,
                    int64_t *out, int threads) {
  constexpr int64_t kPiece = 1 << 14; // whose count fits 32 bits, as wide as the comparisons
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * width > (1 << 16))
  for (int64_t i = 0; i < n; ++i) {
    const Real limit = threshold[i];
    for (int64_t begin = 0; begin < width; begin += kPiece) {
      const Real *piece = scores + row[i] * width + begin;
      const int64_t length = std::min(kPiece, width - begin);
      int32_t count = 0;
#pragma omp simd reduction(+ : count)
      for (int64_t column = 0; column < length; ++column) {
        count += static_cast<int32_t>(piece[column] > limit) + static_cast<int32_t>(piece[column] >= limit);
      }
      out[i] += count;
    }
  }
}

template void count_reaching<float>(const float *, const int64_t *, const float *, int64_t, int64_t, int64_t *, int);
template void count_reaching<double>(const double *, const int64_t *, const double *, int64_t, int64_t, int64_t *, int);
template void segment_sum_rows<float>(const float *, const int64_t *, const int64_t *, int64_t, int64_t, float *, int);
template void segment_sum_rows<double>(const double *, const int64_t *, const int64_t *, int64_t, int64_t, double *,
                                       int);

} // namespace hpcgnn
