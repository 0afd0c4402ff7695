// Bindings of the link decoder and its loss.
#include "hpcgnn/link_decoder.h"

#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ module) {
  using Layer = LinkDecoder<Real>;
  using Saved = LinkDecoderSaved<Real>;
  nb::class_<Saved>(module, "LinkDecoderSaved");
  nb::class_<Layer> type(module, "LinkDecoder");
  bind_fields(type, FIELD(Layer, roles), FIELD(Layer, pairs), FIELD(Layer, sources), FIELD(Layer, destinations),
              FIELD(Layer, width), FIELD(Layer, hidden), FIELD(Layer, source_rows), FIELD(Layer, destination_rows),
              FIELD(Layer, source_place), FIELD(Layer, destination_place), FIELD(Layer, source), FIELD(Layer, bias),
              FIELD(Layer, destination), FIELD(Layer, out), FIELD(Layer, out_bias));
  type.def(nb::init<>())
      .def("gradient_size", &Layer::gradient_size)
      .def(
          "forward",
          [](const Layer &decoder, uintptr_t logits, int threads) {
            return link_decoder_forward(decoder, at<Real>(logits), threads);
          },
          Release())
      .def(
          "backward",
          [](const Layer &decoder, const Saved &saved, uintptr_t gradient, uintptr_t grad_rows, uintptr_t grad_weights,
             int threads) {
            link_decoder_backward(decoder, saved, at<const Real>(gradient), at<Real>(grad_rows), at<Real>(grad_weights),
                                  threads);
          },
          Release());
  module.def(
      "link_loss",
      [](uintptr_t logits, int64_t roles, int64_t pairs, int64_t batch, uintptr_t gradient) {
        return link_loss(at<const Real>(logits), roles, pairs, batch, at<Real>(gradient));
      },
      Release());
}

} // namespace

HPCGNN_BINDING(link_decoder) {
  bind_kernels<float>(precision<float>(module));
  bind_kernels<double>(precision<double>(module));
}

} // namespace hpcgnn
