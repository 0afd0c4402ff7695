// The element function of static neighbour sampling, row by row as the CUDA build runs it; called by test_neighbors.py.
#include "hpcgnn/neighbors.h"

using namespace hpcgnn;

extern "C" void sample_neighbors(const int64_t *indptr, const int64_t *identity, const uint32_t *weight,
                                 const int64_t *source_identity, int32_t fanout, int32_t mode, uint64_t seed,
                                 uint32_t stream, uint32_t step, uint32_t hop, const int64_t *nodes, int64_t n,
                                 int64_t *offsets, int64_t *positions, uint64_t *keys) {
  const NeighborSampler sampler{
      indptr, identity, weight, nullptr, source_identity, fanout, NeighborMode(mode), {seed, stream, step, 0, hop, 0}};
  offsets[0] = 0;
  for (int64_t i = 0; i < n; ++i) {
    offsets[i + 1] = offsets[i] + neighbor_count(sampler, neighbor_row(sampler, nodes[i]));
    sample_neighbors_one(sampler, nodes[i], offsets[i + 1] - offsets[i], positions + offsets[i], keys + offsets[i]);
  }
}
