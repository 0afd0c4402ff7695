// Bindings of the temporal attention layer.
#include "hpcgnn/attention_layer.h"

#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ module) {
  using Layer = AttentionLayer<Real>;
  using Saved = AttentionSaved<Real>;
  nb::class_<Saved>(module, "AttentionSaved");
  nb::class_<Layer> type(module, "AttentionLayer");
  bind_fields(type, FIELD(Layer, roots), FIELD(Layer, unique), FIELD(Layer, slots), FIELD(Layer, heads),
              FIELD(Layer, node_width), FIELD(Layer, edge_width), FIELD(Layer, time_width), FIELD(Layer, out_width),
              FIELD(Layer, node), FIELD(Layer, root), FIELD(Layer, slot), FIELD(Layer, count), FIELD(Layer, edge_of),
              FIELD(Layer, dt), FIELD(Layer, edge), FIELD(Layer, frequency), FIELD(Layer, phase),
              FIELD(Layer, query_weight), FIELD(Layer, query_bias), FIELD(Layer, key), FIELD(Layer, value),
              FIELD(Layer, merge_weight), FIELD(Layer, merge_bias), FIELD(Layer, norm_weight), FIELD(Layer, norm_bias),
              FIELD(Layer, scale), FIELD(Layer, eps), FIELD(Layer, identity), FIELD(Layer, dropout),
              FIELD(Layer, random));
  type.def(nb::init<>())
      .def("gradient_size", &Layer::gradient_size)
      .def(
          "forward",
          [](const Layer &layer, uintptr_t out, int threads) {
            return attention_layer_forward(layer, at<Real>(out), threads);
          },
          Release())
      .def(
          "backward",
          [](const Layer &layer, const Saved &saved, uintptr_t slot_indptr, uintptr_t slot_order, uintptr_t root_indptr,
             uintptr_t root_order, uintptr_t gradient, bool with_phase, uintptr_t grad_node, uintptr_t grad_weights,
             int threads) {
            const AttentionTranspose transpose{at<const int64_t>(slot_indptr), at<const int64_t>(slot_order),
                                               at<const int64_t>(root_indptr), at<const int64_t>(root_order)};
            attention_layer_backward(layer, saved, transpose, at<const Real>(gradient), with_phase, at<Real>(grad_node),
                                     at<Real>(grad_weights), threads);
          },
          Release());
}

} // namespace

HPCGNN_BINDING(attention_layer) {
  bind_kernels<float>(precision<float>(module));
  bind_kernels<double>(precision<double>(module));
}

} // namespace hpcgnn
