// Bindings of products of groups of rows.
#include "hpcgnn/grouped.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real>
Groups groups_of(const I64 &begin, const Array<const Real, 2> &rows, const Array<const Real, 3> &weight) {
  require(begin.shape(0) == weight.shape(0) + 1 && rows.shape(1) == weight.shape(1),
          "begin [groups + 1], rows [n, in], weight [groups, in, out]");
  const auto groups = static_cast<int64_t>(weight.shape(0));
  bool ordered = begin.data()[0] == 0 && begin.data()[groups] == static_cast<int64_t>(rows.shape(0));
  for (int64_t group = 0; group < groups; ++group) {
    ordered = ordered && begin.data()[group] <= begin.data()[group + 1];
  }
  require(ordered, "groups must cover the rows in order");
  return {groups, begin.data()};
}

template <typename Real> void bind_grouped_linear(nb::module_ &module) {
  module.def(
      "grouped_linear",
      [](I64 begin, Array<const Real, 2> rows, Array<const Real, 3> weight, Array<Real, 2> out, int threads) {
        require(has_shape(out, rows.shape(0), weight.shape(2)), "out [n, out]");
        grouped_linear<Real>(groups_of<Real>(begin, rows, weight), rows.data(), rows.shape(1), weight.data(),
                             weight.shape(2), out.data(), threads);
      },
      Release());
  module.def(
      "grouped_linear_backward",
      [](I64 begin, Array<const Real, 2> rows, Array<const Real, 3> weight, Array<const Real, 2> gradient,
         Maybe<Real, 2> grad_rows, Maybe<Real, 3> grad_weight, int threads) {
        require(has_shape(gradient, rows.shape(0), weight.shape(2)), "gradient [n, out]");
        require(!grad_rows || has_shape(*grad_rows, rows.shape(0), rows.shape(1)), "grad_rows like the rows");
        require(!grad_weight || (has_shape(*grad_weight, weight.shape(0), weight.shape(1)) &&
                                 grad_weight->shape(2) == weight.shape(2)),
                "grad_weight like the weight");
        grouped_linear_backward<Real>(groups_of<Real>(begin, rows, weight), rows.data(), rows.shape(1), weight.data(),
                                      weight.shape(2), gradient.data(), data_of(grad_rows), data_of(grad_weight),
                                      threads);
      },
      Release(), nb::arg("begin"), nb::arg("rows"), nb::arg("weight"), nb::arg("gradient"), nb::arg("grad_rows").none(),
      nb::arg("grad_weight").none(), nb::arg("threads"));
}

EdgeLists lists_of(const I64 &indptr, const I64 &row, const Maybe<const int64_t, 1> &edge) {
  require(indptr.shape(0) >= 1, "indptr [segments + 1]");
  return {static_cast<int64_t>(indptr.shape(0)) - 1, indptr.data(), row.data(), data_of(edge)};
}

// [heads, segments, width].
template <typename T> bool has_heads(const T &array, size_t heads, size_t segments, size_t width) {
  return has_shape(array, heads, segments) && array.shape(2) == width;
}

template <typename Real> void bind_heads(nb::module_ &module) {
  module.def(
      "head_sums",
      [](I64 indptr, I64 row, Array<const Real, 2> rows, Array<const Real, 2> weight, Array<Real, 3> out, int threads) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        require(has_heads(out, weight.shape(1), lists.segments, rows.shape(1)) && weight.shape(0) == row.shape(0),
                "out [heads, segments, width], weight [edges, heads]");
        head_sums<Real>(lists, rows.data(), rows.shape(1), {weight.data(), static_cast<int32_t>(weight.shape(1))},
                        out.data(), threads);
      },
      Release());
  module.def(
      "head_products",
      [](I64 indptr, I64 row, Array<const Real, 3> segment_rows, Array<const Real, 2> rows, Array<Real, 2> product,
         int threads) {
        const EdgeLists lists = lists_of(indptr, row, std::nullopt);
        require(has_heads(segment_rows, product.shape(1), lists.segments, rows.shape(1)) &&
                    product.shape(0) == row.shape(0),
                "segment_rows [heads, segments, width], product [edges, heads]");
        head_products<Real>(lists, segment_rows.data(), rows.data(), rows.shape(1),
                            static_cast<int32_t>(product.shape(1)), product.data(), threads);
      },
      Release());
  module.def(
      "add_head_rows",
      [](I64 indptr, I64 row, I64 edge, Array<const Real, 3> head_rows, Array<const Real, 2> weight, Array<Real, 2> sum,
         int threads) {
        const EdgeLists lists = lists_of(indptr, row, edge);
        require(has_shape(sum, lists.segments, head_rows.shape(2)) && head_rows.shape(0) == weight.shape(1),
                "sum [segments, width], head_rows [heads, n, width], weight [edges, heads]");
        add_head_rows<Real>(lists, head_rows.data(), head_rows.shape(1), head_rows.shape(2),
                            {weight.data(), static_cast<int32_t>(weight.shape(1))}, sum.data(), threads);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(grouped) {
  bind_heads<float>(module);
  bind_heads<double>(module);
  bind_grouped_linear<float>(module);
  bind_grouped_linear<double>(module);
}

} // namespace hpcgnn
