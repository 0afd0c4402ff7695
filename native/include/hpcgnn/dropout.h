// Keyed dropout: whether an element is kept depends on (seed, step, epoch, layer, row identity, column) only.
#pragma once

#include "hpcgnn/philox.h"

namespace hpcgnn {

// Elements are dropped when their random word is below this.
HPCGNN_HD uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Columns 4 * block .. 4 * block + 3 of one row.
template <typename Real>
HPCGNN_HD void dropout_block(const RandomContext &context, uint64_t identity, int32_t block, int32_t columns,
                             uint32_t threshold, Real scale, Real *row) {
  const RandomBlock words =
      philox(random_counter(context, identity, static_cast<uint32_t>(block)), random_key(context));
  for (int32_t lane = 0; lane < 4 && 4 * block + lane < columns; ++lane) {
    row[4 * block + lane] = words.word[lane] < threshold ? static_cast<Real>(0) : scale;
  }
}

// All columns of one row times their multipliers: the same numbers, many blocks at a time, so that loops vectorise.
template <typename Real>
inline void dropout_row(const RandomContext &context, uint64_t identity, int32_t columns, uint32_t threshold,
                        Real scale, Real *row) {
  constexpr int32_t kBlocks = 16;
  const RandomKey key = random_key(context);
  for (int32_t begin = 0; begin < columns; begin += 4 * kBlocks) {
    uint32_t word[4 * kBlocks];
#pragma omp simd
    for (int32_t block = 0; block < kBlocks; ++block) {
      const RandomBlock words =
          philox(random_counter(context, identity, static_cast<uint32_t>(begin / 4 + block)), key);
      word[4 * block] = words.word[0];
      word[4 * block + 1] = words.word[1];
      word[4 * block + 2] = words.word[2];
      word[4 * block + 3] = words.word[3];
    }
    const int32_t size = columns - begin < 4 * kBlocks ? columns - begin : 4 * kBlocks;
#pragma omp simd
    for (int32_t j = 0; j < size; ++j) {
      row[begin + j] *= word[j] < threshold ? static_cast<Real>(0) : scale;
    }
  }
}

} // namespace hpcgnn
