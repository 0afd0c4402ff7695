// The layers of layers.h, once per precision as submodules float32 and float64. Arrays come as addresses, which
// hpcgnn.native.layers has checked: a layer has some twenty, and converting arrays would cost more than small layers.
#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"
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
             uintptr_t query_weight, uintptr_t query_bias, uintptr_t key, uintptr_t value, uintptr_t merge_weight,
             uintptr_t merge_bias, uintptr_t norm_weight, uintptr_t norm_bias, double scale, double eps,
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
                             at<const Real>(key),
                             at<const Real>(value),
                             at<const Real>(merge_weight),
                             at<const Real>(merge_bias),
                             at<const Real>(norm_weight),
                             at<const Real>(norm_bias),
                             scale,
                             eps,
                             at<const int64_t>(identity),
                             dropout,
                             random == nullptr ? RandomContext{} : *random};
          },
          nb::kw_only(), nb::arg("roots"), nb::arg("unique"), nb::arg("slots"), nb::arg("heads"), nb::arg("node_width"),
          nb::arg("edge_width"), nb::arg("time_width"), nb::arg("out_width"), nb::arg("node"), nb::arg("root"),
          nb::arg("slot"), nb::arg("count"), nb::arg("edge_of"), nb::arg("dt"), nb::arg("edge"), nb::arg("frequency"),
          nb::arg("phase"), nb::arg("query_weight"), nb::arg("query_bias"), nb::arg("key"), nb::arg("value"),
          nb::arg("merge_weight"), nb::arg("merge_bias"), nb::arg("norm_weight"), nb::arg("norm_bias"),
          nb::arg("scale"), nb::arg("eps"), nb::arg("identity"), nb::arg("dropout"), nb::arg("random").none())
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

template <typename Real> void bind_recurrent(nb::module_ &module) {
  using Cell = cpu::Recurrent<Real>;
  using Saved = cpu::RecurrentSaved<Real>;
  nb::class_<Saved>(module, "RecurrentSaved");
  nb::class_<Cell>(module, "Recurrent")
      .def(
          "__init__",
          [](Cell *self, int64_t rows, int32_t gates, int32_t state_width, int32_t mail_width, int32_t time_width,
             bool state_first, uintptr_t index, uintptr_t state, uintptr_t mail, uintptr_t mailed, uintptr_t updated,
             uintptr_t delivered, uintptr_t frequency, uintptr_t phase, uintptr_t weight_ih, uintptr_t weight_hh,
             uintptr_t bias_ih, uintptr_t bias_hh) {
            new (self) Cell{rows,
                            gates,
                            state_width,
                            mail_width,
                            time_width,
                            state_first,
                            at<const int64_t>(index),
                            at<const Real>(state),
                            at<const Real>(mail),
                            at<const int64_t>(mailed),
                            at<const int64_t>(updated),
                            at<const int64_t>(delivered),
                            at<const double>(frequency),
                            at<const double>(phase),
                            at<const Real>(weight_ih),
                            at<const Real>(weight_hh),
                            at<const Real>(bias_ih),
                            at<const Real>(bias_hh)};
          },
          nb::kw_only(), nb::arg("rows"), nb::arg("gates"), nb::arg("state_width"), nb::arg("mail_width"),
          nb::arg("time_width"), nb::arg("state_first"), nb::arg("index"), nb::arg("state"), nb::arg("mail"),
          nb::arg("mailed"), nb::arg("updated"), nb::arg("delivered"), nb::arg("frequency"), nb::arg("phase"),
          nb::arg("weight_ih"), nb::arg("weight_hh"), nb::arg("bias_ih"), nb::arg("bias_hh"))
      .def("gradient_size", &Cell::gradient_size)
      .def(
          "forward",
          [](const Cell &cell, uintptr_t out, int threads) {
            return cpu::recurrent_forward(cell, at<Real>(out), threads);
          },
          Release())
      .def(
          "backward",
          [](const Cell &cell, const Saved &saved, uintptr_t gradient, bool with_phase, uintptr_t grad_weights,
             int threads) {
            cpu::recurrent_backward(cell, saved, at<const Real>(gradient), with_phase, at<Real>(grad_weights), threads);
          },
          Release());
}

template <typename Real> void bind_link_decoder(nb::module_ &module) {
  using Decoder = cpu::LinkDecoder<Real>;
  using Saved = cpu::LinkDecoderSaved<Real>;
  nb::class_<Saved>(module, "LinkDecoderSaved");
  nb::class_<Decoder>(module, "LinkDecoder")
      .def(
          "__init__",
          [](Decoder *self, int64_t roles, int64_t pairs, int32_t width, int32_t hidden, uintptr_t embedding,
             uintptr_t source, uintptr_t bias, uintptr_t destination, uintptr_t out, uintptr_t out_bias) {
            new (self) Decoder{roles,
                               pairs,
                               width,
                               hidden,
                               at<const Real>(embedding),
                               at<const Real>(source),
                               at<const Real>(bias),
                               at<const Real>(destination),
                               at<const Real>(out),
                               at<const Real>(out_bias)};
          },
          nb::kw_only(), nb::arg("roles"), nb::arg("pairs"), nb::arg("width"), nb::arg("hidden"), nb::arg("embedding"),
          nb::arg("source"), nb::arg("bias"), nb::arg("destination"), nb::arg("out"), nb::arg("out_bias"))
      .def("gradient_size", &Decoder::gradient_size)
      .def(
          "forward",
          [](const Decoder &decoder, uintptr_t logits, int threads) {
            return cpu::link_decoder_forward(decoder, at<Real>(logits), threads);
          },
          Release())
      .def(
          "backward",
          [](const Decoder &decoder, const Saved &saved, uintptr_t gradient, uintptr_t grad_embedding,
             uintptr_t grad_weights, int threads) {
            cpu::link_decoder_backward(decoder, saved, at<const Real>(gradient), at<Real>(grad_embedding),
                                       at<Real>(grad_weights), threads);
          },
          Release());
  module.def(
      "link_loss",
      [](uintptr_t logits, int64_t roles, int64_t pairs, int64_t batch, uintptr_t gradient) {
        return cpu::link_loss(at<const Real>(logits), roles, pairs, batch, at<Real>(gradient));
      },
      Release());
}

template <typename Real> void bind_training(nb::module_ &module) {
  module.def(
      "replace_memory",
      [](int64_t state_width, int64_t mail_width, uintptr_t state_table, uintptr_t mail_table, uintptr_t updated,
         uintptr_t mailed, uintptr_t delivered, int64_t count, uintptr_t rows, uintptr_t place, uintptr_t state,
         uintptr_t given, uintptr_t time, int threads) {
        const cpu::MemoryTable<Real> table{state_width,           mail_width,           at<Real>(state_table),
                                           at<Real>(mail_table),  at<int64_t>(updated), at<int64_t>(mailed),
                                           at<int64_t>(delivered)};
        const cpu::MemoryWrite<Real> write{
            count,
            at<const int64_t>(rows),
            at<const int64_t>(place),
            at<const Real>(state),
            at<const Real>(given),
            at<const int64_t>(time),
        };
        cpu::replace_memory(table, write, threads);
      },
      Release());
  module.def(
      "adam_step",
      [](int64_t step, double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
         int64_t size, uintptr_t gradient, uintptr_t parameter, uintptr_t mean, uintptr_t square, int threads) {
        cpu::adam_step({step, lr, beta1, beta2, eps, weight_decay, decoupled}, size, at<const Real>(gradient),
                       at<Real>(parameter), at<Real>(mean), at<Real>(square), threads);
      },
      Release());
}

template <typename Real> void bind_precision(nb::module_ module) {
  bind_attention_layer<Real>(module);
  bind_recurrent<Real>(module);
  bind_link_decoder<Real>(module);
  bind_training<Real>(module);
}

} // namespace

void bind_layers(nb::module_ &module) {
  bind_precision<float>(module.def_submodule("float32"));
  bind_precision<double>(module.def_submodule("float64"));
}

} // namespace hpcgnn
