// Products of groups of rows with a matrix each, on the CPU: rows [n, I], of which group g has begin[g] .. begin[g + 1]
// - 1, G groups, weight [G, I, O].
#pragma once

#include <cstdint>

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

} // namespace hpcgnn
