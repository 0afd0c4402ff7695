// Who owns an id: blocks of consecutive ids, each of one rank and one run of its local rows; messages by rank.
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

// Owner and local row of every id [n]; or in stable order by owner: the ids' positions, their local rows, counts
// [size].
void locate(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t *owner, int64_t *local);
void locate_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *order, int64_t *local,
                     int64_t *counts);
// Positions of ranks [n], each below size, in stable order.
void order_of_ranks(const int64_t *ranks, int64_t n, int64_t size, int64_t *order);
// The unique ids, sorted by owner, within an owner in order of first occurrence, and the inverse [n], -1 for a negative
// id: local [<= n] rows and counts [size] of the owners. Returns the number of unique ids.
int64_t unique_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *unique,
                        int32_t *inverse, int64_t *local, int64_t *counts);

// Joins ranges of values, those from begin [n] on and of length [n].
void gather_ranges(const int64_t *values, const int64_t *begin, const int64_t *length, int64_t n, int64_t *out);

} // namespace hpcgnn
