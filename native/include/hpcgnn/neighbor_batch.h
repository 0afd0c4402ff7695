// A whole batch of static neighbor sampling in one call, on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hpcgnn/neighbors.h"
#include "hpcgnn/relabel.h"

namespace hpcgnn {

// What one hop draws for its frontier, the unique nodes so far.
struct SampledLayer {
  int64_t nodes = 0, edges = 0;
  std::unique_ptr<int64_t[]> offsets;   // [nodes + 1]
  std::unique_ptr<int32_t[]> source;    // [edges], positions among the unique nodes after this hop
  std::unique_ptr<int64_t[]> positions; // [edges] in the CSC, null where not wanted
};

struct LayersJob {
  NeighborSampler sampler; // its hop: of the first layer
  const int64_t *src;      // [entries] rows
  const int64_t *seeds;    // [num_seeds]
  int64_t num_seeds;
  std::vector<int32_t> fanouts;
  bool with_positions;
};

// The relabeler begins anew and has as many nodes as the topology has rows. Throws std::invalid_argument for a seed or
// source that is none of them.
std::vector<SampledLayer> sample_layers(const LayersJob &job, Relabeler &relabeler, int threads);

} // namespace hpcgnn
