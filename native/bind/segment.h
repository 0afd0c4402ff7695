// Bindings of the operations over lists of edges, which both backends have under one signature.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/bindings.h"
#include "hpcgnn/segment.h"

namespace hpcgnn {

template <typename Device> using Edges = std::optional<Array<const int64_t, 1, Device>>;

template <typename Device>
EdgeLists lists_of(const Array<const int64_t, 1, Device> &indptr, const Array<const int64_t, 1, Device> &row,
                   const Edges<Device> &edge) {
  require(indptr.shape(0) >= 1 && (!edge || edge->shape(0) == row.shape(0)),
          "indptr [segments + 1]; row and edge of the entries");
  return {static_cast<int64_t>(indptr.shape(0)) - 1, indptr.data(), row.data(), edge ? edge->data() : nullptr};
}

template <typename Array> bool has_shape(const Array &array, size_t rows, size_t columns) {
  return array.shape(0) == rows && array.shape(1) == columns;
}

template <typename Backend, typename Real> void bind_segment_rows(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  using Rows = Array<const Real, 2, D>;
  using Out = Array<Real, 2, D>;
  module.def(
      "segment_sum",
      [](I64 indptr, I64 row, Edges<D> edge, Rows rows, std::optional<Rows> weight, Out out, int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, edge);
        const int32_t heads = weight ? static_cast<int32_t>(weight->shape(1)) : 1;
        require(has_shape(out, lists.segments, rows.shape(1)), "out [segments, width]");
        require(heads > 0 && rows.shape(1) % heads == 0, "heads must divide the width");
        Backend::template segment_sum<Real>(lists, rows.data(), rows.shape(1),
                                            {weight ? weight->data() : nullptr, heads}, out.data(), execution);
      },
      Release(), nb::arg("indptr"), nb::arg("row"), nb::arg("edge").none(), nb::arg("rows"), nb::arg("weight").none(),
      nb::arg("out"), nb::arg("execution"));
  module.def(
      "segment_max",
      [](I64 indptr, I64 row, Rows rows, Out out, Array<int64_t, 2, D> winner, int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, std::nullopt);
        require(has_shape(out, lists.segments, rows.shape(1)) && has_shape(winner, lists.segments, rows.shape(1)),
                "out and winner [segments, width]");
        Backend::template segment_max<Real>(lists, rows.data(), rows.shape(1), out.data(), winner.data(), execution);
      },
      Release());
  module.def(
      "segment_max_backward",
      [](I64 indptr, I64 row, I64 edge, Rows gradient, Array<const int64_t, 2, D> winner, Out grad_rows,
         int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, edge);
        const auto width = gradient.shape(1);
        require(has_shape(winner, gradient.shape(0), width) && has_shape(grad_rows, lists.segments, width),
                "winner like the gradient, grad_rows [sources, width]");
        Backend::template segment_max_backward<Real>(lists, gradient.data(), winner.data(), width, grad_rows.data(),
                                                     execution);
      },
      Release());
}

template <typename Backend, typename Real> void bind_edge_attention(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  using Rows = Array<const Real, 2, D>;
  using Out = Array<Real, 2, D>;
  module.def(
      "edge_products",
      [](I64 indptr, I64 row, Rows segment_rows, Rows rows, Out product, int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, std::nullopt);
        const auto width = rows.shape(1), heads = product.shape(1);
        require(has_shape(segment_rows, lists.segments, width) && product.shape(0) == row.shape(0) && heads > 0 &&
                    width % heads == 0,
                "segment_rows [segments, width], product [edges, heads], heads divide the width");
        Backend::template edge_products<Real>(lists, segment_rows.data(), rows.data(), width,
                                              static_cast<int32_t>(heads), product.data(), execution);
      },
      Release());
  module.def(
      "edge_attention",
      [](I64 indptr, I64 row, Rows source, Rows target, double slope, Out weight, int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, std::nullopt);
        const auto heads = source.shape(1);
        require(has_shape(target, lists.segments, heads) && has_shape(weight, row.shape(0), heads),
                "target [segments, heads], weight [edges, heads]");
        Backend::template edge_attention<Real>(
            lists, {source.data(), target.data(), static_cast<int32_t>(heads), static_cast<Real>(slope)}, weight.data(),
            execution);
      },
      Release());
  module.def(
      "edge_attention_backward",
      [](I64 indptr, I64 row, Rows source, Rows target, double slope, Rows weight, Out grad_score, Out grad_target,
         int64_t execution) {
        const EdgeLists lists = lists_of<D>(indptr, row, std::nullopt);
        const auto heads = source.shape(1);
        require(has_shape(target, lists.segments, heads) && has_shape(grad_target, lists.segments, heads),
                "target and its gradient [segments, heads]");
        require(has_shape(weight, row.shape(0), heads) && has_shape(grad_score, row.shape(0), heads),
                "weight and grad_score [edges, heads]");
        Backend::template edge_attention_backward<Real>(
            lists, {source.data(), target.data(), static_cast<int32_t>(heads), static_cast<Real>(slope)}, weight.data(),
            grad_score.data(), grad_target.data(), execution);
      },
      Release());
}

template <typename Backend> void bind_segments(nb::module_ &module) {
  bind_segment_rows<Backend, float>(module);
  bind_segment_rows<Backend, double>(module);
  bind_edge_attention<Backend, float>(module);
  bind_edge_attention<Backend, double>(module);
}

} // namespace hpcgnn
