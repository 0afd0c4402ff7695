// Temporal samplers on CUDA: one thread a root, which writes its row of positions directly.
#include "launch.h"

namespace hpcgnn::cuda {
namespace {

// What the roots of one call have in common, and where they are.
struct Roots {
  const int64_t *nodes, *times;
  int64_t n, event_limit;
  int32_t fanout;
};

__global__ void recent_kernel(TemporalGraph graph, Roots roots, int64_t *positions, int32_t *count) {
  const int64_t i = entry_index();
  if (i < roots.n) {
    count[i] = sample_recent_one(graph, roots.nodes[i], roots.times[i], roots.event_limit, roots.fanout,
                                 positions + i * roots.fanout);
  }
}

__global__ void uniform_kernel(TemporalGraph graph, Roots roots, const int64_t *identity, bool replace,
                               RandomContext context, int64_t *positions, int32_t *count) {
  const int64_t i = entry_index();
  if (i < roots.n) {
    count[i] = sample_uniform_one(graph, roots.nodes[i], roots.times[i], roots.event_limit, roots.fanout, replace,
                                  context, static_cast<uint64_t>(identity[i]), positions + i * roots.fanout);
  }
}

} // namespace

void sample_recent(const TemporalGraph &graph, const int64_t *nodes, const int64_t *times, int64_t n,
                   int64_t event_limit, int32_t fanout, int64_t *positions, int32_t *count, Stream stream) {
  launch_entries(recent_kernel, n, stream, graph, Roots{nodes, times, n, event_limit, fanout}, positions, count);
}

void sample_uniform(const TemporalGraph &graph, const int64_t *nodes, const int64_t *times, const int64_t *identity,
                    int64_t n, int64_t event_limit, int32_t fanout, bool replace, const RandomContext &context,
                    int64_t *positions, int32_t *count, Stream stream) {
  launch_entries(uniform_kernel, n, stream, graph, Roots{nodes, times, n, event_limit, fanout}, identity, replace,
                 context, positions, count);
}

} // namespace hpcgnn::cuda
