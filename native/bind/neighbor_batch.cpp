// Binding of whole batches of static neighbor sampling.
#include "hpcgnn/neighbor_batch.h"

#include <nanobind/stl/vector.h>

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

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

nb::list layers_to_python(std::vector<SampledLayer> layers) {
  nb::list result;
  for (SampledLayer &layer : layers) {
    result.append(nb::make_tuple(hand_over(std::move(layer.offsets), layer.nodes + 1),
                                 hand_over(std::move(layer.source), layer.edges),
                                 hand_over(std::move(layer.positions), layer.edges)));
  }
  return result;
}

nb::list sample_batch(I64 indptr, I64 src, I64 identity, Maybe<const uint32_t, 1> weight, int32_t mode, I64 seeds,
                      std::vector<int32_t> fanouts, bool with_positions, const RandomContext &context,
                      Relabeler &relabeler, int threads) {
  require(static_cast<int64_t>(indptr.shape(0)) == relabeler.num_nodes() + 1 &&
              indptr.shape(0) == identity.shape(0) + 1,
          "indptr [n + 1], identity [n] and a relabeling of n nodes");
  require(relabeler.num_nodes() <= INT32_MAX, "a batch in one call takes fewer than 2^31 nodes");
  require(!weight || weight->shape(0) == src.shape(0), "weight as long as src");
  std::vector<SampledLayer> layers;
  {
    nb::gil_scoped_release release;
    const NeighborSampler sampler{indptr.data(),      identity.data(), data_of(weight), src.data(), identity.data(), 0,
                                  NeighborMode(mode), context};
    layers = sample_layers(
        {sampler, src.data(), seeds.data(), static_cast<int64_t>(seeds.shape(0)), std::move(fanouts), with_positions},
        relabeler, threads);
  }
  return layers_to_python(std::move(layers));
}

} // namespace

HPCGNN_BINDING(neighbor_batch) { module.def("sample_layers", &sample_batch); }

} // namespace hpcgnn
