// Softmax attention of one root over its slots, by the lanes of a warp together; on the host by one lane. Keys are rows
// [node | edge | cos(w dt + b)] that are never stored: their columns are formed where they are needed.
#pragma once

#include <cmath>
#include <cstdint>

#include "hpcgnn/base/execution.h"
#include "hpcgnn/base/platform.h"
#include "hpcgnn/base/trig.h"

namespace hpcgnn {

// N roots, K slots, H heads, U unique rows of width D, edge features F, time encoding T, W = D + F + T.
template <typename Real> struct AttentionInput {
  int64_t roots, unique;
  int32_t slots, heads, node_width, edge_width, time_width;
  const Real *query, *node;              // [N, H, W], [U, D]
  const int32_t *slot, *count, *edge_of; // [N, K] rows of node, [N] how many, [N, K] rows of edge (if F > 0)
  const Real *edge;                      // [., F]
  const int64_t *dt;                     // [N, K]
  const double *frequency, *phase;       // [T]

  HPCGNN_HD int32_t width() const { return node_width + edge_width + time_width; }
  HPCGNN_HD int64_t scores() const { return int64_t(heads) * slots; }
};

// One thread for all columns.
struct SingleLane {
  HPCGNN_HD int32_t index() const { return 0; }
  HPCGNN_HD int32_t count() const { return 1; }
  template <typename Real> HPCGNN_HD Real sum(Real value) const { return value; }
  HPCGNN_HD void sync() const {}
};

// In two roundings on the device too.
HPCGNN_HD double phase_of(double time, double frequency, double phase) {
#if defined(HPCGNN_ON_GPU)
  return __dadd_rn(__dmul_rn(time, frequency), phase);
#else
  return time * frequency + phase;
#endif
}

template <typename Real>
HPCGNN_HD SineCosine<Real> encoded_time(const AttentionInput<Real> &in, int64_t entry, int32_t column) {
  const double phase = phase_of(static_cast<double>(in.dt[entry]), in.frequency[column], in.phase[column]);
  const Reduced<Real> reduced = reduce_phase<Real>(phase);
  return sine_cosine_reduced(reduced.rest, reduced.quadrant);
}

// One column of the key of entry n K + k.
template <typename Real> HPCGNN_HD Real key_column(const AttentionInput<Real> &in, int64_t entry, int32_t column) {
  if (column < in.node_width) {
    return in.node[static_cast<int64_t>(in.slot[entry]) * in.node_width + column];
  }
  column -= in.node_width;
  if (column < in.edge_width) {
    return in.edge[static_cast<int64_t>(in.edge_of[entry]) * in.edge_width + column];
  }
  return encoded_time(in, entry, column - in.edge_width).cosine;
}

constexpr int32_t kHeadsAtOnce = 4; // that share a key's column

// score [H, K] of a root: rows [H, W] times its keys.
template <typename Real, typename Lanes>
HPCGNN_HD void dot_keys(const AttentionInput<Real> &in, int64_t root, const Real *rows, const Lanes &lanes,
                        Real *score) {
  const int32_t width = in.width(), count = in.count[root];
  for (int32_t k = 0; k < count; ++k) {
    for (int32_t first = 0; first < in.heads; first += kHeadsAtOnce) {
      Real sum[kHeadsAtOnce] = {};
      for (int32_t column = lanes.index(); column < width; column += lanes.count()) {
        const Real key = key_column(in, root * in.slots + k, column);
        for (int32_t h = 0; h < kHeadsAtOnce && first + h < in.heads; ++h) {
          sum[h] += rows[(first + h) * width + column] * key;
        }
      }
      for (int32_t h = 0; h < kHeadsAtOnce && first + h < in.heads; ++h) {
        const Real total = lanes.sum(sum[h]);
        if (lanes.index() == 0) {
          score[(first + h) * in.slots + k] = total;
        }
      }
    }
  }
  lanes.sync();
}

// out [H, W] of a root: score [H, K] times its keys.
template <typename Real, typename Lanes>
HPCGNN_HD void sum_keys(const AttentionInput<Real> &in, int64_t root, const Real *score, const Lanes &lanes,
                        Real *out) {
  const int32_t width = in.width(), count = in.count[root];
  for (int32_t first = 0; first < in.heads; first += kHeadsAtOnce) {
    for (int32_t column = lanes.index(); column < width; column += lanes.count()) {
      Real sum[kHeadsAtOnce] = {};
      for (int32_t k = 0; k < count; ++k) {
        const Real key = key_column(in, root * in.slots + k, column);
        for (int32_t h = 0; h < kHeadsAtOnce && first + h < in.heads; ++h) {
          sum[h] += score[(first + h) * in.slots + k] * key;
        }
      }
      for (int32_t h = 0; h < kHeadsAtOnce && first + h < in.heads; ++h) {
        out[(first + h) * width + column] = sum[h];
      }
    }
  }
}

// to [N, H, K] from a root's scores [H, K], zeros behind its slots.
template <typename Real, typename Lanes>
HPCGNN_HD void store_scores(const AttentionInput<Real> &in, int64_t root, const Real *score, const Lanes &lanes,
                            Real *to) {
  for (int32_t j = lanes.index(); j < in.scores(); j += lanes.count()) {
    to[root * in.scores() + j] = j % in.slots < in.count[root] ? score[j] : Real(0);
  }
}

// aggregate [N, H, W] weighted sums of the keys, weight [N, H, K]; score [H, K] is scratch that the lanes share.
template <typename Real, typename Lanes>
HPCGNN_HD void attend(const AttentionInput<Real> &in, int64_t root, const Lanes &lanes, Real *score, Real *aggregate,
                      Real *weight) {
  const int64_t row = int64_t(in.heads) * in.width();
  const int32_t count = in.count[root];
  dot_keys(in, root, in.query + root * row, lanes, score);
  for (int32_t h = lanes.index(); h < in.heads; h += lanes.count()) {
    Real *of_head = score + h * in.slots, largest = Real(-1e30), sum = 0;
    for (int32_t k = 0; k < count; ++k) {
      largest = of_head[k] > largest ? of_head[k] : largest;
    }
    for (int32_t k = 0; k < count; ++k) {
      of_head[k] = exp(of_head[k] - largest);
      sum += of_head[k];
    }
    for (int32_t k = 0; k < count; ++k) {
      of_head[k] /= sum;
    }
  }
  lanes.sync();
  sum_keys(in, root, score, lanes, aggregate + root * row);
  store_scores(in, root, score, lanes, weight);
}

// From the gradient [N, H, W] of the aggregate: grad_score [N, H, K], grad_query [N, H, W].
template <typename Real, typename Lanes>
HPCGNN_HD void attend_backward(const AttentionInput<Real> &in, int64_t root, const Lanes &lanes, const Real *weight,
                               const Real *gradient, Real *score, Real *grad_score, Real *grad_query) {
  const int64_t row = int64_t(in.heads) * in.width();
  dot_keys(in, root, gradient + root * row, lanes, score);
  for (int32_t h = lanes.index(); h < in.heads; h += lanes.count()) {
    Real *of_head = score + h * in.slots, mean = 0;
    const Real *a = weight + root * in.scores() + h * in.slots;
    for (int32_t k = 0; k < in.count[root]; ++k) {
      mean += a[k] * of_head[k];
    }
    for (int32_t k = 0; k < in.count[root]; ++k) {
      of_head[k] = a[k] * (of_head[k] - mean);
    }
  }
  lanes.sync();
  sum_keys(in, root, score, lanes, grad_query + root * row);
  store_scores(in, root, score, lanes, grad_score);
}

// What keys of all heads pass on to one of their columns, for entry (root, k).
template <typename Real>
HPCGNN_HD Real entry_gradient(const AttentionInput<Real> &in, int64_t root, int64_t k, int32_t column,
                              const Real *weight, const Real *grad_score, const Real *gradient) {
  Real sum = 0;
  for (int32_t h = 0; h < in.heads; ++h) {
    const int64_t score = root * in.scores() + h * in.slots + k;
    const int64_t at = (root * in.heads + h) * in.width() + column;
    sum += weight[score] * gradient[at] + grad_score[score] * in.query[at];
  }
  return sum;
}

// One column of a unique row's gradient: over the slots that show it, in their order (CSR transpose of slot).
template <typename Real>
HPCGNN_HD Real node_gradient(const AttentionInput<Real> &in, int64_t node, int32_t column, const int64_t *indptr,
                             const int64_t *order, const Real *weight, const Real *grad_score, const Real *gradient) {
  Real sum = 0;
  for (int64_t j = indptr[node]; j < indptr[node + 1]; ++j) {
    sum += entry_gradient(in, order[j] / in.slots, order[j] % in.slots, column, weight, grad_score, gradient);
  }
  return sum;
}

// One column of the phase's gradient, over the roots [begin, end).
template <typename Real>
HPCGNN_HD double phase_gradient(const AttentionInput<Real> &in, int64_t begin, int64_t end, int32_t column,
                                const Real *weight, const Real *grad_score, const Real *gradient) {
  double sum = 0;
  for (int64_t root = begin; root < end; ++root) {
    for (int32_t k = 0; k < in.count[root]; ++k) {
      const Real sine = encoded_time(in, root * in.slots + k, column).sine;
      sum -= sine * entry_gradient(in, root, k, in.node_width + in.edge_width + column, weight, grad_score, gradient);
    }
  }
  return sum;
}

// On CUDA: aggregate [N, H, W] and weight [N, H, K].
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

} // namespace hpcgnn
