// A whole batch, or a hop of many relations, of static neighbor sampling in one call, on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hpcgnn/neighbors.h"
#include "hpcgnn/relabel.h"

namespace hpcgnn {

// What one hop draws for its frontier, the unique nodes so far.
struct SampledLayer {
  int64_t nodes = 0, edges = 0;
  std::unique_ptr<int64_t[]> offsets;   // [nodes + 1]
  std::unique_ptr<int32_t[]> source;    // [edges], positions among the unique nodes after this hop
  std::unique_ptr<int64_t[]> positions; // [edges] in the CSC, null where not wanted
};

struct LayersJob {
  NeighborSampler sampler; // its hop: of the first layer
  const int64_t *src;      // [entries] rows
  const int64_t *seeds;    // [num_seeds]
  int64_t num_seeds;
  std::vector<int32_t> fanouts;
  bool with_positions;
};

// The relabeler begins anew and has as many nodes as the topology has rows. Throws std::invalid_argument for a seed or
// source that is none of them.
std::vector<SampledLayer> sample_layers(const LayersJob &job, Relabeler &relabeler, int threads);

// The pairs of a relation and a node that has such edges, from first[node] to first[node + 1], in order of relation.
struct NodePairs {
  const int64_t *first;    // [nodes + 1]
  const int64_t *list;     // [pairs] number of the pair's list
  const int64_t *relation; // [pairs]
  int64_t nodes;
};

// Nodes [bounds[groups]], group by group: bounds [groups + 1].
struct GroupedNodes {
  const int64_t *node;
  const int64_t *bounds;
  int64_t groups;
};

struct FoundPairs {
  int64_t size = 0;
  std::unique_ptr<int64_t[]> list, place; // [size]; place: of the node among the nodes
  std::unique_ptr<int32_t[]> relation;    // [size]
};

// The pairs of the nodes, of relations whose fanout is not 0, in order of group, then relation, then place. Throws
// std::invalid_argument for a node or relation that there is not.
FoundPairs find_pairs(const NodePairs &pairs, const GroupedNodes &nodes, const std::vector<int32_t> &fanouts);

// What is drawn of lists with these numbers.
struct ListsJob {
  NeighborSampler sampler;
  RowRelations relations;
  LostEntries lost;
  const int64_t *lists; // [n] numbers below num_lists
  int64_t n, num_lists;
  const int64_t *source; // [entries], null where it is not wanted
  bool with_positions;
};

struct SampledLists {
  int64_t n = 0, edges = 0;
  std::unique_ptr<int64_t[]> offsets;           // [n + 1]
  std::unique_ptr<int64_t[]> positions, source; // [edges] in the lists; of the source of each, null where not wanted
};

// Throws std::invalid_argument for a list or relation that there is not.
SampledLists sample_lists(const ListsJob &job, int threads);
// The lists and relations of pairs, in place of the job's. Pairs of which nothing is drawn are taken out of `pairs`.
SampledLists sample_pairs(ListsJob job, FoundPairs &pairs, int threads);

} // namespace hpcgnn
