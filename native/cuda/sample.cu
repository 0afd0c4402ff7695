// Temporal samplers on CUDA: one thread a root, which writes its row of positions directly, or a slot.
#include "cuda/launch.h"
#include "hpcgnn/sample.h"

namespace hpcgnn {
namespace {

__global__ void recent_kernel(TemporalGraph graph, TemporalRoots roots, int64_t n, int32_t fanout, int64_t *positions,
                              int32_t *count) {
  const int64_t i = entry_index();
  if (i < n) {
    count[i] = sample_recent_one(graph, roots, i, fanout, positions + i * fanout);
  }
}

__global__ void uniform_kernel(TemporalGraph graph, TemporalRoots roots, const int64_t *identity, int64_t n,
                               int32_t fanout, bool replace, RandomContext context, int64_t *positions,
                               int32_t *count) {
  const int64_t i = entry_index();
  if (i < n) {
    count[i] = sample_uniform_one(graph, roots, i, fanout, replace, context, static_cast<uint64_t>(identity[i]),
                                  positions + i * fanout);
  }
}

__global__ void decay_kernel(Decay decay, RandomContext context, int64_t n, int32_t fanout, int64_t *positions,
                             int32_t *count) {
  const int64_t i = entry_index();
  if (i < n) {
    count[i] = decay_keep_one(decay, context, i, fanout, count[i], positions);
  }
}

__global__ void reply_kernel(HistoryColumns history, const int64_t *positions, const int64_t *times, int64_t slots,
                             int32_t fanout, ReplyColumns reply) {
  const int64_t at = entry_index();
  if (at < slots) {
    reply_slot(history, reply, positions[at], times[at / fanout], at);
  }
}

} // namespace

void sample_recent(const TemporalGraph &graph, const TemporalRoots &roots, int64_t n, int32_t fanout,
                   int64_t *positions, int32_t *count, Stream stream) {
  launch_entries(recent_kernel, n, stream, graph, roots, n, fanout, positions, count);
}

void sample_uniform(const TemporalGraph &graph, const TemporalRoots &roots, const int64_t *identity, int64_t n,
                    int32_t fanout, bool replace, const RandomContext &context, int64_t *positions, int32_t *count,
                    Stream stream) {
  launch_entries(uniform_kernel, n, stream, graph, roots, identity, n, fanout, replace, context, positions, count);
}

void decay_keep(const Decay &decay, const RandomContext &context, int64_t n, int32_t fanout, int64_t *positions,
                int32_t *count, Stream stream) {
  launch_entries(decay_kernel, n, stream, decay, context, n, fanout, positions, count);
}

void temporal_reply(const HistoryColumns &history, const int64_t *positions, const int64_t *times, int64_t n,
                    int32_t fanout, const ReplyColumns &reply, Stream stream) {
  launch_entries(reply_kernel, n * fanout, stream, history, positions, times, n * fanout, fanout, reply);
}

} // namespace hpcgnn
