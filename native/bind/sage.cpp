// Bindings of the layer of GraphSAGE.
#include "hpcgnn/sage.h"

#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real>
SageLayer<Real> sage_of(int64_t sources, const Array<const Real, 2> &table, const Maybe<const int64_t, 1> &index,
                        const I64 &indptr, const I64 &entry, const Array<const Real, 2> &weight,
                        const Array<const Real, 1> &bias, const Maybe<const Real, 1> &edge_weight, bool mean,
                        bool relu) {
  const auto destinations = static_cast<int64_t>(indptr.shape(0)) - 1;
  require(destinations >= 0 && destinations <= sources, "the first sources are the destinations");
  require(static_cast<int64_t>(index ? index->shape(0) : table.shape(0)) == sources, "a row a source");
  require(has_shape(weight, bias.shape(0), 2 * table.shape(1)), "weight [out, 2 in], bias [out]");
  require(!edge_weight || edge_weight->shape(0) == entry.shape(0), "edge_weight: one an edge");
  return {destinations,
          sources,
          static_cast<int32_t>(table.shape(1)),
          static_cast<int32_t>(bias.shape(0)),
          table.data(),
          data_of(index),
          indptr.data(),
          entry.data(),
          weight.data(),
          bias.data(),
          data_of(edge_weight),
          mean,
          relu};
}

template <typename Real> void bind_kernels(nb::module_ &module, const char *saved_name) {
  using Saved = SageSaved<Real>;
  nb::class_<Saved>(module, saved_name);
  module.def(
      "sage_forward",
      [](int64_t sources, Array<const Real, 2> table, Maybe<const int64_t, 1> index, I64 indptr, I64 entry,
         Array<const Real, 2> weight, Array<const Real, 1> bias, Maybe<const Real, 1> edge_weight, bool mean, bool relu,
         Array<Real, 2> out, int threads) {
        const auto layer = sage_of<Real>(sources, table, index, indptr, entry, weight, bias, edge_weight, mean, relu);
        require(has_shape(out, layer.destinations, layer.out_width), "out [destinations, out]");
        return sage_forward<Real>(layer, out.data(), threads);
      },
      Release(), nb::arg("sources"), nb::arg("table"), nb::arg("index").none(), nb::arg("indptr"), nb::arg("entry"),
      nb::arg("weight"), nb::arg("bias"), nb::arg("edge_weight").none(), nb::arg("mean"), nb::arg("relu"),
      nb::arg("out"), nb::arg("threads"));
  module.def(
      "sage_backward",
      [](int64_t sources, Array<const Real, 2> table, Maybe<const int64_t, 1> index, I64 indptr, I64 entry,
         Array<const Real, 2> weight, Array<const Real, 1> bias, Maybe<const Real, 1> edge_weight, bool mean, bool relu,
         const Saved &saved, Array<const Real, 2> out, Array<const Real, 2> gradient,
         Maybe<const int64_t, 1> transposed, Maybe<const int64_t, 1> destination, Maybe<const int64_t, 1> edge,
         Maybe<Real, 2> grad_rows, Array<Real, 1> grad_weights, int threads) {
        const auto layer = sage_of<Real>(sources, table, index, indptr, entry, weight, bias, edge_weight, mean, relu);
        require(has_shape(out, layer.destinations, layer.out_width) &&
                    has_shape(gradient, layer.destinations, layer.out_width),
                "out and its gradient [destinations, out]");
        require(static_cast<int64_t>(grad_weights.shape(0)) == layer.gradient_size(), "grad_weights: weight and bias");
        require(!grad_rows || !edge_weight || edge, "weights of transposed lists need their edges");
        require(!grad_rows || (transposed && destination && has_shape(*grad_rows, sources, layer.in_width) &&
                               static_cast<int64_t>(transposed->shape(0)) == sources + 1),
                "grad_rows [sources, in] needs the transposed lists");
        sage_backward<Real>(layer, saved, out.data(), gradient.data(),
                            {data_of(transposed), data_of(destination), data_of(edge)}, data_of(grad_rows),
                            grad_weights.data(), threads);
      },
      Release(), nb::arg("sources"), nb::arg("table"), nb::arg("index").none(), nb::arg("indptr"), nb::arg("entry"),
      nb::arg("weight"), nb::arg("bias"), nb::arg("edge_weight").none(), nb::arg("mean"), nb::arg("relu"),
      nb::arg("saved"), nb::arg("out"), nb::arg("gradient"), nb::arg("transposed").none(),
      nb::arg("destination").none(), nb::arg("edge").none(), nb::arg("grad_rows").none(), nb::arg("grad_weights"),
      nb::arg("threads"));
}

} // namespace

HPCGNN_BINDING(sage) {
  bind_kernels<float>(module, "SageSaved32");
  bind_kernels<double>(module, "SageSaved64");
}

} // namespace hpcgnn
