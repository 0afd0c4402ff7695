// Operations over lists of edges on the CPU. W columns, H heads, E edges.
#pragma once

#include "hpcgnn/segment.h"

namespace hpcgnn::cpu {

// out [segments, W]: weighted sums of rows.
template <typename Real>
void segment_sum(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
                 int threads);
// out, winner [segments, W].
template <typename Real>
void segment_max(const EdgeLists &lists, const Real *rows, int64_t width, Real *out, int64_t *winner, int threads);
// grad_rows [sources, W] from the gradient [segments, W], by the transposed lists.
template <typename Real>
void segment_max_backward(const EdgeLists &transposed, const Real *gradient, const int64_t *winner, int64_t width,
                          Real *grad_rows, int threads);
// product [E, H] of a segment's row [segments, W] with the rows of its entries, head by head.
template <typename Real>
void edge_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, int threads);
// weight [E, H].
template <typename Real>
void edge_attention(const EdgeLists &lists, const EdgeScores<Real> &scores, Real *weight, int threads);
// grad_score [E, H]: given the weights' gradient, becomes the scores'; grad_target [segments, H].
template <typename Real>
void edge_attention_backward(const EdgeLists &lists, const EdgeScores<Real> &scores, const Real *weight,
                             Real *grad_score, Real *grad_target, int threads);

// Products of groups of rows with a matrix each: rows [n, I], of which group g has group[g] .. group[g + 1] - 1, G
// groups, weight [G, I, O].
struct Groups {
  int64_t count;
  const int64_t *begin; // [G + 1]
};
// out [n, O].
template <typename Real>
void grouped_linear(const Groups &groups, const Real *rows, int64_t in_width, const Real *weight, int64_t out_width,
                    Real *out, int threads);
// From the gradient [n, O] of out: grad_rows [n, I] and grad_weight [G, I, O]; either may be null.
template <typename Real>
void grouped_linear_backward(const Groups &groups, const Real *rows, int64_t in_width, const Real *weight,
                             int64_t out_width, const Real *gradient, Real *grad_rows, Real *grad_weight, int threads);

} // namespace hpcgnn::cpu
