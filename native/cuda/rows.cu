// Gather, scatter and sums of rows on CUDA. Rows are copied in the widest words that their width and addresses allow;
// sums are taken per target in the order of its index list: deterministic.
#include "cuda/launch.h"
#include "hpcgnn/base/atomics.h"
#include "hpcgnn/rows.h"

namespace hpcgnn {
namespace {

template <typename Word>
__global__ void gather_kernel(const Word *table, const int64_t *index, int64_t n, int64_t width, Word *out) {
  const int64_t row = row_index();
  if (row < n) {
    const int64_t source = index[row];
    for (int64_t word = threadIdx.x; word < width; word += blockDim.x) {
      out[row * width + word] = source < 0 ? Word{} : table[source * width + word];
    }
  }
}

template <typename Word>
__global__ void scatter_kernel(Word *table, const int64_t *index, const Word *rows, int64_t n, int64_t width) {
  const int64_t row = row_index();
  if (row < n && index[row] >= 0) {
    Word *target = table + index[row] * width;
    for (int64_t word = threadIdx.x; word < width; word += blockDim.x) {
      target[word] = rows[row * width + word];
    }
  }
}

// Calls copy with a value of the widest type that divides the row and both addresses.
template <typename Copy> void with_word(int64_t row_bytes, const uint8_t *a, const uint8_t *b, const Copy &copy) {
  const uintptr_t bits =
      static_cast<uintptr_t>(row_bytes) | reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
  if (bits % 16 == 0) {
    copy(uint4{});
  } else if (bits % 8 == 0) {
    copy(uint2{});
  } else if (bits % 4 == 0) {
    copy(uint32_t{});
  } else {
    copy(uint8_t{});
  }
}

template <typename Real>
__global__ void segment_sum_kernel(const Real *__restrict__ rows, const int64_t *__restrict__ indptr,
                                   const int64_t *__restrict__ order, int64_t segments, int64_t width,
                                   Real *__restrict__ out) {
  const int64_t segment = row_index();
  if (segment < segments) {
    const int64_t begin = indptr[segment], end = indptr[segment + 1];
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      Real sum = 0;
#pragma unroll 4
      for (int64_t j = begin; j < end; ++j) {
        sum += rows[order[j] * width + column];
      }
      out[segment * width + column] = sum;
    }
  }
}

template <typename Real>
__global__ void count_kernel(const Real *scores, const int64_t *row, const Real *threshold, int64_t n, int64_t width,
                             int64_t *out) {
  const int64_t i = row_index();
  if (i < n) {
    const Real *own = scores + row[i] * width;
    const Real limit = threshold[i];
    int64_t count = 0;
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      count += static_cast<int64_t>(own[column] > limit) + static_cast<int64_t>(own[column] >= limit);
    }
    atomic_add(out + i, count);
  }
}

} // namespace

void gather_rows(const uint8_t *table, const int64_t *index, int64_t n, int64_t row_bytes, uint8_t *out,
                 Stream stream) {
  with_word(row_bytes, table, out, [=](auto word) {
    using Word = decltype(word);
    const int64_t width = row_bytes / static_cast<int64_t>(sizeof(Word));
    launch_rows(gather_kernel<Word>, n, width, kWarpThreads, stream, reinterpret_cast<const Word *>(table), index, n,
                width, reinterpret_cast<Word *>(out));
  });
}

void scatter_rows(uint8_t *table, const int64_t *index, const uint8_t *rows, int64_t n, int64_t row_bytes,
                  Stream stream) {
  with_word(row_bytes, table, rows, [=](auto word) {
    using Word = decltype(word);
    const int64_t width = row_bytes / static_cast<int64_t>(sizeof(Word));
    launch_rows(scatter_kernel<Word>, n, width, kWarpThreads, stream, reinterpret_cast<Word *>(table), index,
                reinterpret_cast<const Word *>(rows), n, width);
  });
}

// A whole block may share a row: the list is walked once a pass over the columns.
template <typename Real>
void segment_sum_rows(const Real *rows, const int64_t *indptr, const int64_t *order, int64_t segments, int64_t width,
                      Real *out, Stream stream) {
  launch_rows(segment_sum_kernel<Real>, segments, width, kBlockThreads, stream, rows, indptr, order, segments, width,
              out);
}

template <typename Real>
void count_reaching(const Real *scores, const int64_t *row, const Real *threshold, int64_t n, int64_t width,
                    int64_t *out, Stream stream) {
  launch_rows(count_kernel<Real>, n, width, kBlockThreads, stream, scores, row, threshold, n, width, out);
}

template void count_reaching<float>(const float *, const int64_t *, const float *, int64_t, int64_t, int64_t *, Stream);
template void count_reaching<double>(const double *, const int64_t *, const double *, int64_t, int64_t, int64_t *,
                                     Stream);
template void segment_sum_rows<float>(const float *, const int64_t *, const int64_t *, int64_t, int64_t, float *,
                                      Stream);
template void segment_sum_rows<double>(const double *, const int64_t *, const int64_t *, int64_t, int64_t, double *,
                                       Stream);

} // namespace hpcgnn
