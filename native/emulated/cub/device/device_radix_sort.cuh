// CUB's stable sort on the host; see cuda_runtime.h beside cub.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  // Bits of the key outside [begin, end) do not count.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void *scratch, size_t &bytes, const Key *key, Key *sorted_key, const Value *value,
                               Value *sorted_value, int n, int begin, int end, cudaStream_t) {
    if (scratch == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    const Key mask = end - begin >= static_cast<int>(8 * sizeof(Key)) ? ~Key(0) : (Key(1) << (end - begin)) - 1;
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return ((key[a] >> begin) & mask) < ((key[b] >> begin) & mask); });
    for (int i = 0; i < n; ++i) {
      sorted_key[i] = key[order[i]];
      sorted_value[i] = value[order[i]];
    }
    return cudaSuccess;
  }
};

} // namespace cub
