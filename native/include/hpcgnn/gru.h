// The elementwise part of a gated recurrent unit, on the CPU.
#pragma once

#include <cstdint>

namespace hpcgnn {

// From the products of input and state with their weights [n, 3 D] (reset | update | candidate): out [n, D]; gates
// [n, 3 D] are what backward needs.
template <typename Real>
void gru_forward(const Real *from_input, const Real *from_state, const Real *state, int64_t n, int64_t width, Real *out,
                 Real *gates, int threads);
template <typename Real>
void gru_backward(const Real *gradient, const Real *from_state, const Real *state, const Real *gates, int64_t n,
                  int64_t width, Real *grad_from_input, Real *grad_from_state, int threads);

} // namespace hpcgnn
