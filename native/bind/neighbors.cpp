// CPU operations of static neighbour sampling that CUDA does not have: relabelling over several calls, whole batches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind/bindings.h"
#include "hpcgnn/sample_layers.h"

namespace hpcgnn {
namespace {

using I64 = Array<const int64_t, 1, nb::device::cpu>;
using U32 = Array<const uint32_t, 1, nb::device::cpu>;
template <typename T> using Numpy = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// An array that owns its memory.
template <typename T> nb::object hand_over(std::unique_ptr<T[]> data, int64_t size) {
  if (!data) {
    return nb::none();
  }
  T *memory = data.release();
  nb::capsule owner(memory, [](void *pointer) noexcept { delete[] static_cast<T *>(pointer); });
  return nb::cast(Numpy<T>(memory, {static_cast<size_t>(size)}, owner));
}

nb::object unique_of(const cpu::Relabeler &relabeler) {
  auto *shared = new std::shared_ptr<int64_t[]>(relabeler.unique());
  nb::capsule owner(shared, [](void *pointer) noexcept { delete static_cast<std::shared_ptr<int64_t[]> *>(pointer); });
  return nb::cast(Numpy<int64_t>(shared->get(), {static_cast<size_t>(relabeler.size())}, owner));
}

void add_ids(cpu::Relabeler &relabeler, const I64 &ids, const Array<int32_t, 1, nb::device::cpu> &position) {
  require(ids.shape(0) == position.shape(0), "ids and position must have the same length");
  const int64_t wrong = relabeler.add(ids.data(), static_cast<int64_t>(ids.shape(0)), position.data());
  if (wrong != -1) {
    throw std::invalid_argument("id " + std::to_string(wrong) + " is not below " +
                                std::to_string(relabeler.num_nodes()));
  }
}

nb::list layers_to_python(std::vector<cpu::SampledLayer> layers) {
  nb::list result;
  for (cpu::SampledLayer &layer : layers) {
    result.append(nb::make_tuple(hand_over(std::move(layer.offsets), layer.nodes + 1),
                                 hand_over(std::move(layer.source), layer.edges),
                                 hand_over(std::move(layer.positions), layer.edges)));
  }
  return result;
}

nb::list sample_layers(I64 indptr, I64 src, I64 identity, std::optional<U32> weight, int32_t mode, I64 seeds,
                       std::vector<int32_t> fanouts, bool with_positions, const RandomContext &context,
                       cpu::Relabeler &relabeler, int threads) {
  require(static_cast<int64_t>(indptr.shape(0)) == relabeler.num_nodes() + 1 &&
              indptr.shape(0) == identity.shape(0) + 1,
          "indptr [n + 1], identity [n] and a relabelling of n nodes");
  require(relabeler.num_nodes() <= INT32_MAX, "a batch in one call takes fewer than 2^31 nodes");
  require(!weight || weight->shape(0) == src.shape(0), "weight as long as src");
  std::vector<cpu::SampledLayer> layers;
  {
    nb::gil_scoped_release release;
    const NeighborSampler sampler{indptr.data(),      identity.data(), weight ? weight->data() : nullptr,
                                  src.data(),         identity.data(), 0,
                                  NeighborMode(mode), context};
    layers = cpu::sample_layers(
        {sampler, src.data(), seeds.data(), static_cast<int64_t>(seeds.shape(0)), std::move(fanouts), with_positions},
        relabeler, threads);
  }
  return layers_to_python(std::move(layers));
}

} // namespace

void bind_neighbor_batches(nb::module_ &module) {
  nb::class_<cpu::Relabeler>(module, "Relabeler")
      .def(nb::init<int64_t, bool>())
      .def("begin", &cpu::Relabeler::begin, Release())
      .def("add", &add_ids, Release())
      .def("unique", &unique_of);
  module.def("sample_layers", &sample_layers);
}

} // namespace hpcgnn
