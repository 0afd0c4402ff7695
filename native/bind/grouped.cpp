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

} // namespace

HPCGNN_BINDING(grouped) {
  bind_grouped_linear<float>(module);
  bind_grouped_linear<double>(module);
}

} // namespace hpcgnn
