// CPU operations of layers over sampled neighbours: lists of edges, grouped products, the fused layer of GraphSAGE.
#include <nanobind/stl/unique_ptr.h>

#include "bind/segment.h"
#include "hpcgnn/sage.h"
#include "hpcgnn/segment_cpu.h"

namespace hpcgnn {
namespace {

struct Cpu {
  using Device = nb::device::cpu;
  template <typename Real> static constexpr auto segment_sum = &cpu::segment_sum<Real>;
  template <typename Real> static constexpr auto segment_max = &cpu::segment_max<Real>;
  template <typename Real> static constexpr auto segment_max_backward = &cpu::segment_max_backward<Real>;
  template <typename Real> static constexpr auto edge_products = &cpu::edge_products<Real>;
  template <typename Real> static constexpr auto edge_attention = &cpu::edge_attention<Real>;
  template <typename Real> static constexpr auto edge_attention_backward = &cpu::edge_attention_backward<Real>;
};

template <typename T, int Dims> using Host = Array<T, Dims, nb::device::cpu>;
template <typename T, int Dims> using Maybe = std::optional<Host<T, Dims>>;

template <typename Array> auto data_of(const std::optional<Array> &array) { return array ? array->data() : nullptr; }

template <typename Real>
cpu::Groups groups_of(const Host<const int64_t, 1> &begin, const Host<const Real, 2> &rows,
                      const Host<const Real, 3> &weight) {
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
      [](Host<const int64_t, 1> begin, Host<const Real, 2> rows, Host<const Real, 3> weight, Host<Real, 2> out,
         int threads) {
        require(has_shape(out, rows.shape(0), weight.shape(2)), "out [n, out]");
        cpu::grouped_linear<Real>(groups_of<Real>(begin, rows, weight), rows.data(), rows.shape(1), weight.data(),
                                  weight.shape(2), out.data(), threads);
      },
      Release());
  module.def(
      "grouped_linear_backward",
      [](Host<const int64_t, 1> begin, Host<const Real, 2> rows, Host<const Real, 3> weight,
         Host<const Real, 2> gradient, Maybe<Real, 2> grad_rows, Maybe<Real, 3> grad_weight, int threads) {
        require(has_shape(gradient, rows.shape(0), weight.shape(2)), "gradient [n, out]");
        require(!grad_rows || has_shape(*grad_rows, rows.shape(0), rows.shape(1)), "grad_rows like the rows");
        require(!grad_weight || (has_shape(*grad_weight, weight.shape(0), weight.shape(1)) &&
                                 grad_weight->shape(2) == weight.shape(2)),
                "grad_weight like the weight");
        cpu::grouped_linear_backward<Real>(groups_of<Real>(begin, rows, weight), rows.data(), rows.shape(1),
                                           weight.data(), weight.shape(2), gradient.data(), data_of(grad_rows),
                                           data_of(grad_weight), threads);
      },
      Release(), nb::arg("begin"), nb::arg("rows"), nb::arg("weight"), nb::arg("gradient"), nb::arg("grad_rows").none(),
      nb::arg("grad_weight").none(), nb::arg("threads"));
}

template <typename Real>
cpu::SageLayer<Real> sage_of(int64_t sources, const Host<const Real, 2> &table, const Maybe<const int64_t, 1> &index,
                             const Host<const int64_t, 1> &indptr, const Host<const int64_t, 1> &entry,
                             const Host<const Real, 2> &weight, const Host<const Real, 1> &bias, bool mean, bool relu) {
  const auto destinations = static_cast<int64_t>(indptr.shape(0)) - 1;
  require(destinations >= 0 && destinations <= sources, "the first sources are the destinations");
  require(static_cast<int64_t>(index ? index->shape(0) : table.shape(0)) == sources, "a row a source");
  require(has_shape(weight, bias.shape(0), 2 * table.shape(1)), "weight [out, 2 in], bias [out]");
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
          mean,
          relu};
}

template <typename Real> void bind_sage(nb::module_ &module, const char *saved_name) {
  using Saved = cpu::SageSaved<Real>;
  using I64 = Host<const int64_t, 1>;
  nb::class_<Saved>(module, saved_name);
  module.def(
      "sage_forward",
      [](int64_t sources, Host<const Real, 2> table, Maybe<const int64_t, 1> index, I64 indptr, I64 entry,
         Host<const Real, 2> weight, Host<const Real, 1> bias, bool mean, bool relu, Host<Real, 2> out, int threads) {
        const auto layer = sage_of<Real>(sources, table, index, indptr, entry, weight, bias, mean, relu);
        require(has_shape(out, layer.destinations, layer.out_width), "out [destinations, out]");
        return cpu::sage_forward<Real>(layer, out.data(), threads);
      },
      Release(), nb::arg("sources"), nb::arg("table"), nb::arg("index").none(), nb::arg("indptr"), nb::arg("entry"),
      nb::arg("weight"), nb::arg("bias"), nb::arg("mean"), nb::arg("relu"), nb::arg("out"), nb::arg("threads"));
  module.def(
      "sage_backward",
      [](int64_t sources, Host<const Real, 2> table, Maybe<const int64_t, 1> index, I64 indptr, I64 entry,
         Host<const Real, 2> weight, Host<const Real, 1> bias, bool mean, bool relu, const Saved &saved,
         Host<const Real, 2> out, Host<const Real, 2> gradient, Maybe<const int64_t, 1> transposed,
         Maybe<const int64_t, 1> destination, Maybe<Real, 2> grad_rows, Host<Real, 1> grad_weights, int threads) {
        const auto layer = sage_of<Real>(sources, table, index, indptr, entry, weight, bias, mean, relu);
        require(has_shape(out, layer.destinations, layer.out_width) &&
                    has_shape(gradient, layer.destinations, layer.out_width),
                "out and its gradient [destinations, out]");
        require(static_cast<int64_t>(grad_weights.shape(0)) == layer.gradient_size(), "grad_weights: weight and bias");
        require(!grad_rows || (transposed && destination && has_shape(*grad_rows, sources, layer.in_width) &&
                               static_cast<int64_t>(transposed->shape(0)) == sources + 1),
                "grad_rows [sources, in] needs the transposed lists");
        cpu::sage_backward<Real>(layer, saved, out.data(), gradient.data(), {data_of(transposed), data_of(destination)},
                                 data_of(grad_rows), grad_weights.data(), threads);
      },
      Release(), nb::arg("sources"), nb::arg("table"), nb::arg("index").none(), nb::arg("indptr"), nb::arg("entry"),
      nb::arg("weight"), nb::arg("bias"), nb::arg("mean"), nb::arg("relu"), nb::arg("saved"), nb::arg("out"),
      nb::arg("gradient"), nb::arg("transposed").none(), nb::arg("destination").none(), nb::arg("grad_rows").none(),
      nb::arg("grad_weights"), nb::arg("threads"));
}

// Rows in memory of the workspace, which goes back when the tensor does.
template <typename Real> nb::ndarray<nb::pytorch, Real, nb::ndim<2>> workspace_rows(int64_t count, int64_t width) {
  auto *memory = new Buffer<Real>(count * width);
  nb::capsule owner(memory, [](void *pointer) noexcept { delete static_cast<Buffer<Real> *>(pointer); });
  return {memory->data(), {static_cast<size_t>(count), static_cast<size_t>(width)}, owner};
}

} // namespace

void bind_graph(nb::module_ &module) {
  bind_segments<Cpu>(module);
  bind_grouped_linear<float>(module);
  bind_grouped_linear<double>(module);
  module.def("workspace_rows32", &workspace_rows<float>);
  module.def("workspace_rows64", &workspace_rows<double>);
  bind_sage<float>(module, "SageSaved32");
  bind_sage<double>(module, "SageSaved64");
}

} // namespace hpcgnn
