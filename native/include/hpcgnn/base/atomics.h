// Relaxed atomic operations under one name on the device and on the host. Minimum, maximum and integer sums commute,
// and a key is claimed once, so what the tables built from them hold does not depend on the order in which threads
// arrive.
#pragma once

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

template <typename T> HPCGNN_HD T atomic_load(const T *target) {
#if defined(HPCGNN_ON_GPU)
  return *static_cast<const volatile T *>(target);
#else
  return __atomic_load_n(target, __ATOMIC_RELAXED);
#endif
}

// Stores `desired` where `expected` is; returns what was there before.
HPCGNN_HD int64_t atomic_exchange_if(int64_t *target, int64_t expected, int64_t desired) {
#if defined(HPCGNN_ON_GPU)
  using Word = unsigned long long;
  return static_cast<int64_t>(
      atomicCAS(reinterpret_cast<Word *>(target), static_cast<Word>(expected), static_cast<Word>(desired)));
#else
  __atomic_compare_exchange_n(target, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

// The plain load first spares keys with many duplicates most of their atomics, which one address would serialize.
HPCGNN_HD void atomic_lower(uint32_t *target, uint32_t value) {
  uint32_t current = atomic_load(target);
#if defined(HPCGNN_ON_GPU)
  if (value < current) {
    atomicMin(target, value);
  }
#else
  while (value < current &&
         !__atomic_compare_exchange_n(target, &current, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

HPCGNN_HD void atomic_add(int64_t *target, int64_t value) {
#if defined(HPCGNN_ON_GPU)
  atomicAdd(reinterpret_cast<unsigned long long *>(target), static_cast<unsigned long long>(value));
#else
  __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
#endif
}

HPCGNN_HD void atomic_raise(uint64_t *target, uint64_t value) {
  uint64_t current = atomic_load(target);
#if defined(HPCGNN_ON_GPU)
  if (value > current) {
    atomicMax(reinterpret_cast<unsigned long long *>(target), static_cast<unsigned long long>(value));
  }
#else
  while (value > current &&
         !__atomic_compare_exchange_n(target, &current, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

} // namespace hpcgnn
