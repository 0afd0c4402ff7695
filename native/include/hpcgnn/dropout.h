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

} // namespace hpcgnn
