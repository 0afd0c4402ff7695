// Products of groups of rows with a matrix each, on the CPU: rows [n, I], of which group g has begin[g] .. begin[g + 1]
// - 1, G groups, weight [G, I, O]. And sums of rows over lists of edges in which each of H heads takes all columns.
#pragma once

#include "hpcgnn/segment.h"

namespace hpcgnn {

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

// out [H, segments, W]: the rows of a segment's entries, weighed for each head.
template <typename Real>
void head_sums(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
               int threads);
// product [E, H] of a segment's rows [H, segments, W] with the rows of its entries; other edges' are left as they are.
template <typename Real>
void head_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, int threads);
// Adds to sum [segments, W] what the entries show of head_rows [H, num_rows, W], weighed for each head: the gradient of
// the rows of head_sums, by the transposed lists.
template <typename Real>
void add_head_rows(const EdgeLists &transposed, const Real *head_rows, int64_t num_rows, int64_t width,
                   const EdgeWeights<Real> &weights, Real *sum, int threads);

} // namespace hpcgnn
