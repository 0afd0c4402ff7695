// The layers of layers.h, once per precision as submodules float32 and float64. Arrays come as addresses, which
// hpcgnn.native_layers has checked: a layer has some twenty, and converting arrays would cost more than small layers.
#include <nanobind/stl/unique_ptr.h>

#include "bindings.h"
#include "hpcgnn/layers.h"

namespace hpcgnn {
namespace {

template <typename T> T *at(uintptr_t address) { return reinterpret_cast<T *>(address); }

template <typename Real> void bind_attention_layer(nb::module_ &module) {
  using Layer = cpu::AttentionLayer<Real>;
  using Saved = cpu::AttentionSaved<Real>;
  nb::class_<Saved>(module, "AttentionSaved");
  nb::class_<Layer>(module, "AttentionLayer")
      .def(
          "__init__",
          [](Layer *self, int64_t roots, int64_t unique, int32_t slots, int32_t heads, int32_t node_width,
             int32_t edge_width, int32_t time_width, int32_t out_width, uintptr_t node, uintptr_t root, uintptr_t slot,
             uintptr_t count, uintptr_t edge_of, uintptr_t dt, uintptr_t edge, uintptr_t frequency, uintptr_t phase,
             uintptr_t query_weight, uintptr_t query_bias, uintptr_t out_weight, uintptr_t own_weight,
             int64_t own_stride, uintptr_t bias, uintptr_t norm_weight, uintptr_t norm_bias, double eps,
             uintptr_t identity, double dropout, const RandomContext *random) {
            new (self) Layer{roots,
                             unique,
                             slots,
                             heads,
                             node_width,
                             edge_width,
                             time_width,
                             out_width,
                             at<const Real>(node),
                             at<const int64_t>(root),
                             at<const int32_t>(slot),
                             at<const int32_t>(count),
                             at<const int32_t>(edge_of),
                             at<const int64_t>(dt),
                             at<const Real>(edge),
                             at<const double>(frequency),
                             at<const double>(phase),
                             at<const Real>(query_weight),
                             at<const Real>(query_bias),
                             at<const Real>(out_weight),
                             at<const Real>(own_weight),
                             own_stride,
                             at<const Real>(bias),
                             at<const Real>(norm_weight),
                             at<const Real>(norm_bias),
                             eps,
                             at<const int64_t>(identity),
                             dropout,
                             random == nullptr ? RandomContext{} : *random};
          },
          nb::kw_only(), nb::arg("roots"), nb::arg("unique"), nb::arg("slots"), nb::arg("heads"), nb::arg("node_width"),
          nb::arg("edge_width"), nb::arg("time_width"), nb::arg("out_width"), nb::arg("node"), nb::arg("root"),
          nb::arg("slot"), nb::arg("count"), nb::arg("edge_of"), nb::arg("dt"), nb::arg("edge"), nb::arg("frequency"),
          nb::arg("phase"), nb::arg("query_weight"), nb::arg("query_bias"), nb::arg("out_weight"),
          nb::arg("own_weight"), nb::arg("own_stride"), nb::arg("bias"), nb::arg("norm_weight"), nb::arg("norm_bias"),
          nb::arg("eps"), nb::arg("identity"), nb::arg("dropout"), nb::arg("random").none())
      .def("gradient_size", &Layer::gradient_size)
      .def(
          "forward",
          [](const Layer &layer, uintptr_t out, int threads) {
            return cpu::attention_layer_forward(layer, at<Real>(out), threads);
          },
          Release())
      .def(
          "backward",
          [](const Layer &layer, const Saved &saved, uintptr_t slot_indptr, uintptr_t slot_order, uintptr_t root_indptr,
             uintptr_t root_order, uintptr_t gradient, bool with_phase, uintptr_t grad_node, uintptr_t grad_weights,
             int threads) {
            const cpu::AttentionTranspose transpose{at<const int64_t>(slot_indptr), at<const int64_t>(slot_order),
                                                    at<const int64_t>(root_indptr), at<const int64_t>(root_order)};
            cpu::attention_layer_backward(layer, saved, transpose, at<const Real>(gradient), with_phase,
                                          at<Real>(grad_node), at<Real>(grad_weights), threads);
          },
          Release());
}

template <typename Real> void bind_precision(nb::module_ module) { bind_attention_layer<Real>(module); }

} // namespace

void bind_layers(nb::module_ &module) {
  bind_precision<float>(module.def_submodule("float32"));
  bind_precision<double>(module.def_submodule("float64"));
}

} // namespace hpcgnn
