// A whole layer of temporal attention on the CPU. Forward and backward are one parallel region each: rows go through
// the layer in blocks that stay in the cache. Forward returns an object with what backward needs. Gradients of weights
// are added to one array, in the order given here. Matrices are contiguous rows.
#pragma once

#include <memory>

#include "hpcgnn/random.h"
#include "hpcgnn/workspace.h"

namespace hpcgnn {

// Temporal attention of N roots over K slots, H heads, merged with the root's own row, relu and layer norm. U unique
// rows of width D, edge features F, time encoding T, W = D + F + T, output Z.
template <typename Real> struct AttentionLayer {
  int64_t roots, unique;
  int32_t slots, heads, node_width, edge_width, time_width, out_width;
  const Real *node;                      // [U, D]
  const int64_t *root;                   // [N] rows of node
  const int32_t *slot, *count, *edge_of; // [N, K] rows of node, [N] how many, [N, K] rows of edge (if F > 0)
  const int64_t *dt;                     // [N, K]
  const Real *edge;                      // [., F]
  const double *frequency, *phase;       // [T]
  const Real *query_weight, *query_bias; // [Z, D + T], [Z]
  const Real *key, *value;               // [H, Z / H, W]
  const Real *merge_weight, *merge_bias; // [Z, Z + D], [Z]
  const Real *norm_weight, *norm_bias;   // [Z]
  double scale;                          // of the scores
  double eps;
  const int64_t *identity; // [N], or null: no dropout
  double dropout;
  RandomContext random;

  int64_t width() const { return node_width + edge_width + time_width; }
  int64_t query_width() const { return heads * width(); }
  int64_t head_width() const { return out_width / heads; }
  // key, value, query_weight, query_bias, merge_weight, merge_bias, norm_weight, norm_bias, phase (if wanted)
  int64_t gradient_size(bool with_phase) const {
    return out_width * (2 * width() + out_width + 2 * node_width + time_width + 4) + (with_phase ? time_width : 0);
  }
};

// Queries depend on a root's own row alone, so they are formed once for each of the V different rows that are roots.
template <typename Real> struct AttentionSaved {
  int64_t owners = 0;      // V
  Buffer<int32_t> owner;   // [N] which of the V
  Buffer<int64_t> node;    // [V] row of the unique nodes
  RowBuffer<Real> own;     // [V, D + 1] own row, 1
  RowBuffer<Real> asked;   // [V, Z] query, all heads
  RowBuffer<Real> query;   // [V, H W] query times the keys' weights
  RowBuffer<Real> row;     // [N, H W] weighted sums
  RowBuffer<Real> valued;  // [N, Z] weighted sums times the values' weights
  RowBuffer<Real> hidden;  // [N, Z] after relu
  Buffer<Real> weight;     // [N, H, K]
  Buffer<Real> statistics; // [N, 2] mean and 1 / deviation of hidden
};

// CSR transposes of slot (order: position in [N, K]) and of root.
struct AttentionTranspose {
  const int64_t *slot_indptr, *slot_order, *root_indptr, *root_order;
};

template <typename Real>
std::unique_ptr<AttentionSaved<Real>> attention_layer_forward(const AttentionLayer<Real> &layer, Real *out,
                                                              int threads);
// grad_node [U, D]; grad_weights [gradient_size].
template <typename Real>
void attention_layer_backward(const AttentionLayer<Real> &layer, const AttentionSaved<Real> &saved,
                              const AttentionTranspose &transpose, const Real *gradient, bool with_phase,
                              Real *grad_node, Real *grad_weights, int threads);

} // namespace hpcgnn
