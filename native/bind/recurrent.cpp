// Bindings of the recurrent update of node memory.
#include "hpcgnn/recurrent.h"

#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ module) {
  using Layer = Recurrent<Real>;
  using Saved = RecurrentSaved<Real>;
  nb::class_<Saved>(module, "RecurrentSaved");
  nb::class_<Layer> type(module, "Recurrent");
  bind_fields(type, FIELD(Layer, rows), FIELD(Layer, gates), FIELD(Layer, state_width), FIELD(Layer, mail_width),
              FIELD(Layer, time_width), FIELD(Layer, state_first), FIELD(Layer, index), FIELD(Layer, state),
              FIELD(Layer, mail), FIELD(Layer, mailed), FIELD(Layer, updated), FIELD(Layer, delivered),
              FIELD(Layer, frequency), FIELD(Layer, phase), FIELD(Layer, weight_ih), FIELD(Layer, weight_hh),
              FIELD(Layer, bias_ih), FIELD(Layer, bias_hh));
  type.def(nb::init<>())
      .def("gradient_size", &Layer::gradient_size)
      .def(
          "forward",
          [](const Layer &cell, uintptr_t out, int threads) { return recurrent_forward(cell, at<Real>(out), threads); },
          Release())
      .def(
          "backward",
          [](const Layer &cell, const Saved &saved, uintptr_t gradient, bool with_phase, uintptr_t grad_weights,
             int threads) {
            recurrent_backward(cell, saved, at<const Real>(gradient), with_phase, at<Real>(grad_weights), threads);
          },
          Release());
}

} // namespace

HPCGNN_BINDING(recurrent) {
  bind_kernels<float>(precision<float>(module));
  bind_kernels<double>(precision<double>(module));
}

} // namespace hpcgnn
