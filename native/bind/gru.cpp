// Bindings of the elementwise part of a gated recurrent unit.
#include "hpcgnn/gru.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ &module) {
  module.def(
      "gru_forward",
      [](Array<const Real, 2> from_input, Array<const Real, 2> from_state, Array<const Real, 2> state,
         Array<Real, 2> out, Array<Real, 2> gates, int threads) {
        const auto n = state.shape(0), width = state.shape(1);
        require(from_input.shape(0) == n && from_state.shape(0) == n && out.shape(0) == n && gates.shape(0) == n,
                "equal rows");
        require(from_input.shape(1) == 3 * width && from_state.shape(1) == 3 * width && gates.shape(1) == 3 * width &&
                    out.shape(1) == width,
                "from_input, from_state and gates are three times as wide as the state");
        gru_forward(from_input.data(), from_state.data(), state.data(), n, width, out.data(), gates.data(), threads);
      },
      Release());
  module.def(
      "gru_backward",
      [](Array<const Real, 2> gradient, Array<const Real, 2> from_state, Array<const Real, 2> state,
         Array<const Real, 2> gates, Array<Real, 2> grad_from_input, Array<Real, 2> grad_from_state, int threads) {
        require(gradient.shape(0) == state.shape(0) && gradient.shape(1) == state.shape(1), "gradient and state alike");
        gru_backward(gradient.data(), from_state.data(), state.data(), gates.data(), state.shape(0), state.shape(1),
                     grad_from_input.data(), grad_from_state.data(), threads);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(gru) {
  bind_kernels<float>(module);
  bind_kernels<double>(module);
}

} // namespace hpcgnn
