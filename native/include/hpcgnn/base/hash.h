// The hash of the open-addressing tables (the finaliser of MurmurHash3, which mixes every bit into every other).
#pragma once

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

HPCGNN_HD uint64_t mix64(uint64_t value) {
  value ^= value >> 33;
  value *= 0xFF51AFD7ED558CCDull;
  value ^= value >> 33;
  value *= 0xC4CEB9FE1A85EC53ull;
  return value ^ (value >> 33);
}

// Smallest power of two that is at least twice the number of keys (at least 16).
HPCGNN_HD uint64_t table_size(int64_t keys) {
  uint64_t size = 16;
  while (size < 2 * static_cast<uint64_t>(keys)) {
    size *= 2;
  }
  return size;
}

} // namespace hpcgnn
