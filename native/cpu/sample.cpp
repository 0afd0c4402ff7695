// Temporal samplers on the CPU: one root a loop iteration.
#include "hpcgnn/sample.h"

namespace hpcgnn {

void sample_recent(const TemporalGraph &graph, const TemporalRoots &roots, int64_t n, int32_t fanout,
                   int64_t *positions, int32_t *count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    count[i] = sample_recent_one(graph, roots, i, fanout, positions + i * fanout);
  }
}

void sample_uniform(const TemporalGraph &graph, const TemporalRoots &roots, const int64_t *identity, int64_t n,
                    int32_t fanout, bool replace, const RandomContext &context, int64_t *positions, int32_t *count,
                    int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    count[i] = sample_uniform_one(graph, roots, i, fanout, replace, context, static_cast<uint64_t>(identity[i]),
                                  positions + i * fanout);
  }
}

void decay_keep(const Decay &decay, const RandomContext &context, int64_t n, int32_t fanout, int64_t *positions,
                int32_t *count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    count[i] = decay_keep_one(decay, context, i, fanout, count[i], positions);
  }
}

void temporal_reply(const HistoryColumns &history, const int64_t *positions, const int64_t *times, int64_t n,
                    int32_t fanout, const ReplyColumns &reply, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t at = i * fanout; at < (i + 1) * fanout; ++at) {
      reply_slot(history, reply, positions[at], times[i], at);
    }
  }
}

} // namespace hpcgnn
