// Static neighbour sampling on the CPU, for one thread: the rows of a block, several in the lanes of a register where
// the draws allow it. The same positions as sample_neighbors_one's, row by row.
#pragma once

#include "hpcgnn/neighbors.h"

namespace hpcgnn::cpu {

constexpr int64_t kSampleRows = 256; // rows of a block

// offsets [n + 1]; row i's positions are written at offsets[i] - offsets[0]; keys: scratch of LABOR, as long.
void sample_rows(const NeighborSampler &sampler, const int64_t *nodes, int64_t n, const int64_t *offsets,
                 int64_t *positions, uint64_t *keys);

} // namespace hpcgnn::cpu
