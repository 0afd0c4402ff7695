// CUB's prefix sum on the host; see cuda_runtime.h beside it.
#pragma once

#include <cuda_runtime.h>

namespace cub {

struct DeviceScan {
  template <typename T>
  static cudaError_t ExclusiveSum(void *scratch, size_t &bytes, const T *in, T *out, int n, cudaStream_t) {
    if (scratch == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    T sum = 0;
    for (int i = 0; i < n; ++i) {
      const T value = in[i];
      out[i] = sum;
      sum += value;
    }
    return cudaSuccess;
  }
};

} // namespace cub
