// The CUDA build's operations, on raw device arrays; same results as hpcgnn::cpu, bit for bit. Every call only enqueues
// work on the stream: nothing allocates device memory or waits. Errors of the runtime are thrown as std::runtime_error.
#pragma once

#include <cstdint>

#include "hpcgnn/attention.h"
#include "hpcgnn/neighbors.h"
#include "hpcgnn/philox.h"
#include "hpcgnn/sample.h"

namespace hpcgnn::cuda {

// A cudaStream_t as the integer that Python has of it; this header needs no CUDA toolkit.
struct Stream {
  int64_t handle;
  Stream(int64_t handle) : handle(handle) {}
};

// Device memory for intermediate results, the caller's; its content before and after a call means nothing.
struct Scratch {
  uint8_t *data;
  int64_t bytes;
};

// Samplers: positions [n, fanout] in the T-CSR (-1 pads), count [n].
void sample_recent(const TemporalGraph &graph, const TemporalRoots &roots, int64_t n, int32_t fanout,
                   int64_t *positions, int32_t *count, Stream stream);
void sample_uniform(const TemporalGraph &graph, const TemporalRoots &roots, const int64_t *identity, int64_t n,
                    int32_t fanout, bool replace, const RandomContext &context, int64_t *positions, int32_t *count,
                    Stream stream);
// Drops decayed neighbours of positions [n, fanout] in place, lowers count [n].
void decay_keep(const Decay &decay, const RandomContext &context, int64_t n, int32_t fanout, int64_t *positions,
                int32_t *count, Stream stream);
// What positions [n, fanout] are, of roots with these times [n].
void temporal_reply(const HistoryColumns &history, const int64_t *positions, const int64_t *times, int64_t n,
                    int32_t fanout, const ReplyColumns &reply, Stream stream);

// Static samplers: count [n] of positions that each node's row of the CSC of so many rows gets; with offsets [n + 1],
// the sums of those, positions [offsets[n]]; keys, as long: scratch of LABOR.
void count_neighbors(const NeighborSampler &sampler, int64_t rows, const int64_t *nodes, int64_t n, int64_t *count,
                     Stream stream);
void sample_neighbors(const NeighborSampler &sampler, const int64_t *nodes, int64_t n, const int64_t *offsets,
                      int64_t *positions, uint64_t *keys, Stream stream);

// Random numbers: out [n, slots] in [0, bound); mask [n, columns] of 0 or 1 / (1 - p).
void random_integers(const RandomContext &context, const int64_t *identity, int64_t n, int32_t slots, uint32_t bound,
                     int64_t *out, Stream stream);
template <typename Real>
void dropout_mask(const RandomContext &context, const int64_t *identity, int64_t n, int32_t columns, double p,
                  Real *mask, Stream stream);

// The three operations below take fewer than 2^31 entries and a scratch of at least so many bytes. The sizes of
// unique_relabel and transpose_index are asked of the current device.
int64_t unique_relabel_scratch_bytes(int64_t n);
int64_t last_event_scratch_bytes(int64_t n);
int64_t transpose_index_scratch_bytes(int64_t n, int64_t targets);

// unique [n], of which count [1] are written, in order of first occurrence, inverse [n]; negative ids get inverse -1.
void unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse, int64_t *count, Scratch scratch,
                    Stream stream);
// winner [n]: 1 for the first entry among those of its node with the largest event; negative nodes never win.
void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner, Scratch scratch,
                Stream stream);
// For every target the positions that point at it, in order. indptr [targets + 1], order [n]: entries that point
// nowhere last.
void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order, Scratch scratch,
                     Stream stream);

// Rows. A negative index gathers zeros and scatters nothing; scattered indices are unique.
void gather_rows(const uint8_t *table, const int64_t *index, int64_t n, int64_t row_bytes, uint8_t *out, Stream stream);
void scatter_rows(uint8_t *table, const int64_t *index, const uint8_t *rows, int64_t n, int64_t row_bytes,
                  Stream stream);
// Every column of a segment is summed by one thread in list order: the additions of the CPU, in the same order.
template <typename Real>
void segment_sum_rows(const Real *rows, const int64_t *indptr, const int64_t *order, int64_t segments, int64_t width,
                      Real *out, Stream stream);

// Temporal attention: aggregate [N, H, W] and weight [N, H, K].
template <typename Real>
void attention_forward(const AttentionInput<Real> &in, Real *aggregate, Real *weight, Stream stream);
// From the gradient [N, H, W] of the aggregate, with slot_indptr [U + 1] and slot_order, the transpose of slot:
// grad_score [N, H, K], grad_query [N, H, W], grad_node [U, D] and, unless null, grad_phase [groups, T], a group being
// kPhaseRoots roots, to be summed.
constexpr int64_t kPhaseRoots = 32;
template <typename Real>
void attention_backward(const AttentionInput<Real> &in, const Real *weight, const Real *gradient,
                        const int64_t *slot_indptr, const int64_t *slot_order, Real *grad_score, Real *grad_query,
                        Real *grad_node, double *grad_phase, Stream stream);

} // namespace hpcgnn::cuda
