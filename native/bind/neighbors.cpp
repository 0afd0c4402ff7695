// Bindings of static neighbor sampling.
#include "hpcgnn/neighbors.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

using Weight = Maybe<const uint32_t, 1>;
using Relation = Maybe<const int32_t, 1>;

// Without random numbers: enough to count.
NeighborSampler sampler_of(const I64 &indptr, const Weight &weight, int32_t fanout, int32_t mode) {
  require(indptr.shape(0) >= 1 && fanout > 0, "indptr [rows + 1], fanout > 0");
  return {indptr.data(), nullptr, data_of(weight), nullptr, nullptr, fanout, NeighborMode(mode), {}};
}

// relation: of every node; none where all have the sampler's fanout.
RowRelations relations_of(const Relation &relation, const Relation &fanouts, const I64 &nodes) {
  require(relation.has_value() == fanouts.has_value() && (!relation || relation->shape(0) == nodes.shape(0)),
          "relation as long as nodes, with fanouts by relation");
  return {data_of(relation), data_of(fanouts), fanouts ? static_cast<int64_t>(fanouts->shape(0)) : 0};
}

} // namespace

HPCGNN_BINDING(neighbors) {
  module.def(
      "count_neighbors",
      [](I64 indptr, Weight weight, int32_t fanout, int32_t mode, I64 nodes, Relation relation, Relation fanouts,
         Array<int64_t, 1> count, int64_t execution) {
        require(nodes.shape(0) == count.shape(0), "nodes and count must have the same length");
        count_neighbors(sampler_of(indptr, weight, fanout, mode), relations_of(relation, fanouts, nodes),
                        indptr.shape(0) - 1, nodes.data(), nodes.shape(0), count.data(), execution);
      },
      Release());
  module.def(
      "sample_neighbors",
      [](I64 indptr, Weight weight, int32_t fanout, int32_t mode, I64 nodes, Relation relation, Relation fanouts,
         I64 identity, Maybe<const int64_t, 1> source_identity, const RandomContext &context, I64 offsets,
         Array<int64_t, 1> positions, Maybe<int64_t, 1> keys, int64_t execution) {
        NeighborSampler sampler = sampler_of(indptr, weight, fanout, mode);
        require(identity.shape(0) + 1 == indptr.shape(0) && offsets.shape(0) == nodes.shape(0) + 1,
                "identity [rows], offsets [nodes + 1]");
        require(sampler.mode != NeighborMode::kLabor ||
                    (source_identity && keys && keys->shape(0) == positions.shape(0)),
                "LABOR needs source_identity, and keys as long as positions");
        sampler.identity = identity.data();
        sampler.source_identity = data_of(source_identity);
        sampler.context = context;
        sample_neighbors(sampler, relations_of(relation, fanouts, nodes), nodes.data(), nodes.shape(0), offsets.data(),
                         positions.data(), keys ? reinterpret_cast<uint64_t *>(keys->data()) : nullptr, execution);
      },
      Release());
}

} // namespace hpcgnn
