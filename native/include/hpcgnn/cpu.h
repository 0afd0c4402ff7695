// The CPU build's operations, on raw arrays; checked and wrapped in bindings*.cpp. `threads` is the number of OpenMP
// threads.
#pragma once

#include <cstdint>
#include <vector>

#include "hpcgnn/neighbors.h"
#include "hpcgnn/owner.h"
#include "hpcgnn/philox.h"
#include "hpcgnn/sample.h"
#include "hpcgnn/stream_parts.h"

namespace hpcgnn::cpu {

// Samplers: positions [n, fanout] in the T-CSR (-1 pads), count [n].
void sample_recent(const TemporalGraph &graph, const TemporalRoots &roots, int64_t n, int32_t fanout,
                   int64_t *positions, int32_t *count, int threads);
void sample_uniform(const TemporalGraph &graph, const TemporalRoots &roots, const int64_t *identity, int64_t n,
                    int32_t fanout, bool replace, const RandomContext &context, int64_t *positions, int32_t *count,
                    int threads);
// Drops decayed neighbours of positions [n, fanout] in place, lowers count [n].
void decay_keep(const Decay &decay, const RandomContext &context, int64_t n, int32_t fanout, int64_t *positions,
                int32_t *count, int threads);
// Gathers the reply for positions [n, fanout] of roots with these times [n].
void temporal_reply(const HistoryColumns &history, const int64_t *positions, const int64_t *times, int64_t n,
                    int32_t fanout, const ReplyColumns &reply, int threads);

// Static samplers: count [n] of positions that each node's row of the CSC of so many rows gets; with offsets [n + 1],
// the sums of those, positions [offsets[n]]; keys, as long: scratch of LABOR.
void count_neighbors(const NeighborSampler &sampler, int64_t rows, const int64_t *nodes, int64_t n, int64_t *count,
                     int threads);
void sample_neighbors(const NeighborSampler &sampler, const int64_t *nodes, int64_t n, const int64_t *offsets,
                      int64_t *positions, uint64_t *keys, int threads);

// Random numbers: out [n, slots] in [0, bound); mask [n, columns] of 0 or 1 / (1 - p).
void random_integers(const RandomContext &context, const int64_t *identity, int64_t n, int32_t slots, uint32_t bound,
                     int64_t *out, int threads);
template <typename Real>
void dropout_mask(const RandomContext &context, const int64_t *identity, int64_t n, int32_t columns, double p,
                  Real *mask, int threads);

// unique [<= n] in order of first occurrence, inverse [n]; negative ids get inverse -1. Returns the number of unique
// ids.
int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse);
// winner [n]: 1 for the first entry among those of its node with the largest event; negative nodes never win.
void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner);
// Stable counting sort: for every target the positions that point at it, in order. indptr [targets + 1], order [entries
// >= 0].
void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order);
// Owner and local row of every id [n]; or in stable order by owner: the ids' positions, their local rows, counts
// [size].
void locate(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t *owner, int64_t *local);
void locate_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *order, int64_t *local,
                     int64_t *counts);
// As unique_relabel, the unique ids sorted by owner (stable): local [<= n] and counts [size] of the owners.
int64_t unique_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *unique,
                        int32_t *inverse, int64_t *local, int64_t *counts);

struct StreamNodes {
  const int64_t *node;   // [count]
  const int64_t *weight; // [count, C]
  const int64_t *indptr; // [count + 1]
  const int64_t *neighbor, *tie;
  int64_t count;
};
// Assigns nodes to parts one after the other: part [N of the graph] (-1: none yet) and the loads change; parts of nodes
// that come later count as ties only. Or moves nodes, the last first, out of parts that are over capacity; loads are
// those of all nodes. Returns how many were moved.
void stream_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part);
int64_t even_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part);

// Rows. A negative index gathers zeros and scatters nothing; scattered indices are unique.
void gather_rows(const uint8_t *table, const int64_t *index, int64_t n, int64_t row_bytes, uint8_t *out, int threads);
void scatter_rows(uint8_t *table, const int64_t *index, const uint8_t *rows, int64_t n, int64_t row_bytes, int threads);
template <typename Real>
void segment_sum_rows(const Real *rows, const int64_t *indptr, const int64_t *order, int64_t segments, int64_t width,
                      Real *out, int threads);

// cosine [n, width] of dt * frequency + phase; sine likewise when not null.
template <typename Real>
void time_encode(const int64_t *dt, int64_t n, const double *frequency, const double *phase, int64_t width,
                 Real *cosine, Real *sine, int threads);

// Gated recurrent unit from its two products [n, 3 D] (reset | update | candidate); gates [n, 3 D] are kept for
// backward.
template <typename Real>
void gru_forward(const Real *given, const Real *kept, const Real *state, int64_t n, int64_t width, Real *out,
                 Real *gates, int threads);
template <typename Real>
void gru_backward(const Real *gradient, const Real *kept, const Real *state, const Real *gates, int64_t n,
                  int64_t width, Real *grad_given, Real *grad_kept, int threads);

} // namespace hpcgnn::cpu
