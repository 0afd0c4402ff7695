// Bindings of the operations over lists of edges.
#include "hpcgnn/segment.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

EdgeLists lists_of(const I64 &indptr, const I64 &row, const Maybe<const int64_t, 1> &edge) {
  require(indptr.shape(0) >= 1 && (!edge || edge->shape(0) == row.shape(0)),
          "indptr [segments + 1]; row and edge of the entries");
  return {static_cast<int64_t>(indptr.shape(0)) - 1, indptr.data(), row.data(), data_of(edge)};
}

template <typename Real> void bind_segment_rows(nb::module_ &module) {
  module.def(
      "segment_sum",
      [](I64 indptr, I64 row, Maybe<const int64_t, 1> edge, Array<const Real, 2> rows, Maybe<const Real, 2> weight,
         Array<Real, 2> out, int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, edge);
        const int32_t heads = weight ? static_cast<int32_t>(weight->shape(1)) : 1;
        require(has_shape(out, lists.segments, rows.shape(1)), "out [segments, width]");
        require(heads > 0 && rows.shape(1) % heads == 0, "heads must divide the width");
        require(!weight || weight->shape(0) == row.shape(0), "weight [edges, heads]");
        segment_sum<Real>(lists, rows.data(), rows.shape(1), {data_of(weight), heads}, out.data(), execution);
      },
      Release(), nb::arg("indptr"), nb::arg("row"), nb::arg("edge").none(), nb::arg("rows"), nb::arg("weight").none(),
      nb::arg("out"), nb::arg("execution"));
  module.def(
      "segment_max",
      [](I64 indptr, I64 row, Array<const Real, 2> rows, Array<Real, 2> out, Array<int64_t, 2> winner,
         int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        require(has_shape(out, lists.segments, rows.shape(1)) && has_shape(winner, lists.segments, rows.shape(1)),
                "out and winner [segments, width]");
        segment_max<Real>(lists, rows.data(), rows.shape(1), out.data(), winner.data(), execution);
      },
      Release());
  module.def(
      "segment_max_backward",
      [](I64 indptr, I64 row, I64 edge, Array<const Real, 2> gradient, Array<const int64_t, 2> winner,
         Array<Real, 2> grad_rows, int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, edge);
        const auto width = gradient.shape(1);
        require(has_shape(winner, gradient.shape(0), width) && has_shape(grad_rows, lists.segments, width),
                "winner like the gradient, grad_rows [sources, width]");
        segment_max_backward<Real>(lists, gradient.data(), winner.data(), width, grad_rows.data(), execution);
      },
      Release());
}

template <typename Real> void bind_edge_attention(nb::module_ &module) {
  module.def(
      "edge_products",
      [](I64 indptr, I64 row, Array<const Real, 2> segment_rows, Array<const Real, 2> rows, Array<Real, 2> product,
         int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        const auto width = rows.shape(1), heads = product.shape(1);
        require(has_shape(segment_rows, lists.segments, width) && product.shape(0) == row.shape(0) && heads > 0 &&
                    width % heads == 0,
                "segment_rows [segments, width], product [edges, heads], heads divide the width");
        edge_products<Real>(lists, segment_rows.data(), rows.data(), width, static_cast<int32_t>(heads), product.data(),
                            execution);
      },
      Release());
  module.def(
      "edge_attention",
      [](I64 indptr, I64 row, Array<const Real, 2> source, Array<const Real, 2> target, double slope,
         Array<Real, 2> weight, int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        const auto heads = source.shape(1);
        require(has_shape(target, lists.segments, heads) && has_shape(weight, row.shape(0), heads),
                "target [segments, heads], weight [edges, heads]");
        edge_attention<Real>(lists,
                             {source.data(), target.data(), static_cast<int32_t>(heads), static_cast<Real>(slope)},
                             weight.data(), execution);
      },
      Release());
  module.def(
      "edge_attention_backward",
      [](I64 indptr, I64 row, Array<const Real, 2> source, Array<const Real, 2> target, double slope,
         Array<const Real, 2> weight, Array<Real, 2> grad_score, Array<Real, 2> grad_target, int64_t execution) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        const auto heads = source.shape(1);
        require(has_shape(target, lists.segments, heads) && has_shape(grad_target, lists.segments, heads),
                "target and its gradient [segments, heads]");
        require(has_shape(weight, row.shape(0), heads) && has_shape(grad_score, row.shape(0), heads),
                "weight and grad_score [edges, heads]");
        edge_attention_backward<Real>(
            lists, {source.data(), target.data(), static_cast<int32_t>(heads), static_cast<Real>(slope)}, weight.data(),
            grad_score.data(), grad_target.data(), execution);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(segment) {
  bind_segment_rows<float>(module);
  bind_segment_rows<double>(module);
  bind_edge_attention<float>(module);
  bind_edge_attention<double>(module);
}

} // namespace hpcgnn
