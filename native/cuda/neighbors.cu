// Static neighbor sampling on CUDA: one thread a row, which writes its positions directly.
#include "cuda/launch.h"
#include "hpcgnn/neighbors.h"

namespace hpcgnn {
namespace {

__global__ void count_kernel(NeighborSampler sampler, RowRelations relations, const int64_t *nodes, int64_t n,
                             int64_t *count) {
  const int64_t i = entry_index();
  if (i < n) {
    count[i] = neighbor_count(sampler_of_row(sampler, relations, i), neighbor_row(sampler, nodes[i]));
  }
}

__global__ void sample_kernel(NeighborSampler sampler, RowRelations relations, const int64_t *nodes, int64_t n,
                              const int64_t *offsets, int64_t *positions, uint64_t *keys) {
  const int64_t i = entry_index();
  if (i < n) {
    const int64_t begin = offsets[i];
    sample_neighbors_one(sampler_of_row(sampler, relations, i), nodes[i], offsets[i + 1] - begin, positions + begin,
                         keys == nullptr ? nullptr : keys + begin);
  }
}

} // namespace

void count_neighbors(const NeighborSampler &sampler, const RowRelations &relations, int64_t, const int64_t *nodes,
                     int64_t n, int64_t *count, Stream stream) {
  launch_entries(count_kernel, n, stream, sampler, relations, nodes, n, count);
}

void sample_neighbors(const NeighborSampler &sampler, const RowRelations &relations, const int64_t *nodes, int64_t n,
                      const int64_t *offsets, int64_t *positions, uint64_t *keys, Stream stream) {
  launch_entries(sample_kernel, n, stream, sampler, relations, nodes, n, offsets, positions, keys);
}

} // namespace hpcgnn
