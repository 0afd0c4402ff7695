// Who owns an id: blocks of consecutive ids, each of one rank and one run of its local rows.
#pragma once

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

struct Blocks {
  const int64_t *start; // [count], increasing; of equal starts the last one's block has the ids, the others are empty
  const int64_t *rank;  // [count]
  const int64_t *local; // [count] local row of the block's first id
  int64_t count;        // above 0
};

// The last block that does not start after the id (the first where all do); without branches.
HPCGNN_HD int64_t block_of(const Blocks &blocks, int64_t id) {
  const int64_t *block = blocks.start;
  for (int64_t left = blocks.count; left > 1;) {
    const int64_t half = left / 2;
    block += block[half] <= id ? half : 0;
    left -= half;
  }
  return block - blocks.start;
}

} // namespace hpcgnn
