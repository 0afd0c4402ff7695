// CUB's stable sort by rocPRIM.
#pragma once

#include <cuda_runtime.h>

#include <rocprim/device/device_radix_sort.hpp>

namespace cub {

struct DeviceRadixSort {
  // Bits of the key outside [begin, end) do not count.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void *scratch, size_t &bytes, const Key *key, Key *sorted_key, const Value *value,
                               Value *sorted_value, int n, int begin, int end, cudaStream_t stream) {
    return rocprim::radix_sort_pairs(scratch, bytes, key, sorted_key, value, sorted_value, n, begin, end, stream);
  }
};

} // namespace cub
