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

using Relation = Array<const int32_t, 1>;

// What find_pairs takes, as Python gives it.
struct PairsOfNodes {
  I64 first, list, relation, nodes, bounds;

  FoundPairs find(const Relation &fanouts) const {
    require(first.shape(0) >= 1 && list.shape(0) == relation.shape(0), "first [nodes + 1], a list for every relation");
    require(bounds.shape(0) >= 1 && bounds.data()[bounds.shape(0) - 1] <= static_cast<int64_t>(nodes.shape(0)),
            "bounds [groups + 1] of the nodes");
    return find_pairs({first.data(), list.data(), relation.data(), static_cast<int64_t>(first.shape(0)) - 1},
                      {nodes.data(), bounds.data(), static_cast<int64_t>(bounds.shape(0)) - 1},
                      {fanouts.data(), fanouts.data() + fanouts.shape(0)});
  }
};

// What draws from lists take, as Python gives it.
struct DrawnFrom {
  I64 indptr;
  Maybe<const uint32_t, 1> weight;
  int32_t mode;
  I64 identity;
  Maybe<const int64_t, 1> source_identity, source;
  I64 lost;
  bool with_positions;

  // Without lists to draw from; fanout: of lists without relations.
  ListsJob job(const Relation &fanouts, int32_t fanout, const RandomContext &context) const {
    require(indptr.shape(0) == identity.shape(0) + 1, "indptr [lists + 1], identity [lists]");
    const NeighborSampler sampler{indptr.data(), identity.data(),    data_of(weight), nullptr, data_of(source_identity),
                                  fanout,        NeighborMode(mode), context};
    const RowRelations relations{nullptr, fanouts.data(), static_cast<int64_t>(fanouts.shape(0))};
    return {sampler,
            relations,
            LostEntries(lost.data(), lost.shape(0)),
            nullptr,
            0,
            static_cast<int64_t>(identity.shape(0)),
            data_of(source),
            with_positions};
  }
};

template <typename Make> auto without_lock(const Make &make) {
  nb::gil_scoped_release release;
  return make();
}

nb::tuple pairs_to_python(FoundPairs pairs, bool with_lists) {
  nb::object list = with_lists ? hand_over(std::move(pairs.list), pairs.size) : nb::none();
  return nb::make_tuple(list, hand_over(std::move(pairs.place), pairs.size),
                        hand_over(std::move(pairs.relation), pairs.size));
}

nb::tuple lists_to_python(SampledLists sampled) {
  return nb::make_tuple(hand_over(std::move(sampled.offsets), sampled.n + 1),
                        hand_over(std::move(sampled.positions), sampled.edges),
                        hand_over(std::move(sampled.source), sampled.edges));
}

} // namespace

HPCGNN_BINDING(neighbor_batch) {
  module.def("sample_layers", &sample_batch);
  module.def("find_pairs", [](I64 first, I64 list, I64 relation, I64 nodes, I64 bounds, Relation fanouts) {
    const PairsOfNodes pairs{first, list, relation, nodes, bounds};
    return pairs_to_python(without_lock([&] { return pairs.find(fanouts); }), true);
  });
  module.def("sample_lists", [](I64 indptr, Maybe<const uint32_t, 1> weight, int32_t mode, I64 identity,
                                Maybe<const int64_t, 1> source_identity, Maybe<const int64_t, 1> source, I64 lost,
                                bool with_positions, const RandomContext &context, int threads, Relation fanouts,
                                I64 lists, Maybe<const int32_t, 1> relation) {
    require(relation ? relation->shape(0) == lists.shape(0) : fanouts.shape(0) == 1,
            "a relation of each list, or one fanout");
    const DrawnFrom from{indptr, weight, mode, identity, source_identity, source, lost, with_positions};
    return lists_to_python(without_lock([&] {
      ListsJob job = from.job(fanouts, relation ? 1 : fanouts.data()[0], context);
      job.lists = lists.data();
      job.n = static_cast<int64_t>(lists.shape(0));
      job.relations.of_row = data_of(relation);
      return sample_lists(job, threads);
    }));
  });
  module.def("sample_pairs", [](I64 indptr, Maybe<const uint32_t, 1> weight, int32_t mode, I64 identity,
                                Maybe<const int64_t, 1> source_identity, Maybe<const int64_t, 1> source, I64 lost,
                                bool with_positions, const RandomContext &context, int threads, Relation fanouts,
                                I64 first, I64 list, I64 of_pair, I64 nodes, I64 bounds) {
    const DrawnFrom from{indptr, weight, mode, identity, source_identity, source, lost, with_positions};
    const PairsOfNodes of_nodes{first, list, of_pair, nodes, bounds};
    FoundPairs pairs;
    nb::tuple sampled = lists_to_python(without_lock([&] {
      pairs = of_nodes.find(fanouts);
      return sample_pairs(from.job(fanouts, 1, context), pairs, threads);
    }));
    return nb::make_tuple(pairs_to_python(std::move(pairs), false), sampled);
  });
}

} // namespace hpcgnn
