// CUB's prefix sum by rocPRIM.
#pragma once

#include <cuda_runtime.h>

#include <rocprim/device/device_scan.hpp>

namespace cub {

struct DeviceScan {
  template <typename T>
  static cudaError_t ExclusiveSum(void *scratch, size_t &bytes, const T *in, T *out, int n, cudaStream_t stream) {
    return rocprim::exclusive_scan(scratch, bytes, in, out, T(0), n, rocprim::plus<T>(), stream);
  }
};

} // namespace cub
