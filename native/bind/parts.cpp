// Bindings of the assignment of nodes to parts.
#include "hpcgnn/parts.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

// The loops index by them, and they may come from a file.
bool within(const int64_t *values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      return false;
    }
  }
  return true;
}

bool increasing(const I64 &indptr, int64_t entries) {
  for (size_t row = 1; row < indptr.shape(0); ++row) {
    if (indptr(row) < indptr(row - 1)) {
      return false;
    }
  }
  return indptr(0) == 0 && indptr(indptr.shape(0) - 1) == entries;
}

int64_t checked_balance(I64 indptr, I64 neighbor, I64 tie, Array<const double, 2> distance,
                        Array<const double, 2> weight, Array<const double, 2> limit, I64 nodes, double penalty,
                        Array<int32_t, 1> part, Array<double, 2> loads) {
  const size_t count = part.shape(0), parts = loads.shape(0), constraints = loads.shape(1);
  require(indptr.shape(0) == count + 1 && neighbor.shape(0) == tie.shape(0) &&
              indptr.data()[count] == static_cast<int64_t>(neighbor.shape(0)),
          "indptr [nodes + 1], neighbor and tie [entries]");
  require(distance.shape(0) == parts && distance.shape(1) == parts && weight.shape(0) == count &&
              weight.shape(1) == constraints && limit.shape(0) == parts && limit.shape(1) == constraints,
          "distance [parts, parts], weight [nodes, constraints], limit and loads [parts, constraints]");
  require(within(nodes.data(), static_cast<int64_t>(nodes.shape(0)), static_cast<int64_t>(count)),
          "nodes must be below their number");
  for (size_t node = 0; node < count; ++node) {
    require(part.data()[node] >= 0 && static_cast<size_t>(part.data()[node]) < parts, "a part of every node");
  }
  const PartProblem problem{static_cast<int64_t>(parts),
                            static_cast<int64_t>(constraints),
                            indptr.data(),
                            neighbor.data(),
                            tie.data(),
                            distance.data(),
                            weight.data(),
                            limit.data()};
  return balance_parts(problem, nodes.data(), static_cast<int64_t>(nodes.shape(0)), penalty, part.data(), loads.data());
}

using Matrix64 = Array<const int64_t, 2>;
using Loads = Array<double, 2>;
using Capacity = Array<const double, 1>;
using Part = Array<int32_t, 1>;

StreamNodes checked_nodes(const I64 &node, const Matrix64 &weight, const I64 &indptr, const I64 &neighbor,
                          const I64 &tie, const Part &part) {
  const auto count = static_cast<int64_t>(node.shape(0)), entries = static_cast<int64_t>(neighbor.shape(0));
  const auto total = static_cast<int64_t>(part.shape(0));
  require(weight.shape(0) == node.shape(0) && indptr.shape(0) == node.shape(0) + 1, "a row a node");
  require(tie.shape(0) == neighbor.shape(0) && increasing(indptr, entries), "indptr into neighbor and tie");
  require(within(node.data(), count, total) && within(neighbor.data(), entries, total), "nodes out of range");
  return {node.data(), weight.data(), indptr.data(), neighbor.data(), tie.data(), count};
}

StreamLoads checked_loads(const Loads &loads, const Capacity &capacity, const Matrix64 &weight) {
  require(loads.shape(0) > 0 && loads.shape(1) == weight.shape(1) && capacity.shape(0) == weight.shape(1),
          "loads [parts, constraints], capacity [constraints]");
  return {loads.data(), capacity.data(), static_cast<int64_t>(loads.shape(0)), static_cast<int32_t>(loads.shape(1))};
}

} // namespace

HPCGNN_BINDING(parts) {
  module.def("balance_parts", &checked_balance, Release());
  module.def(
      "stream_parts",
      [](I64 node, Matrix64 weight, I64 indptr, I64 neighbor, I64 tie, Loads loads, Capacity capacity, int rule,
         double price, Part part) {
        stream_parts(checked_nodes(node, weight, indptr, neighbor, tie, part), checked_loads(loads, capacity, weight),
                     {static_cast<StreamRule>(rule), price}, part.data());
      },
      Release());
  module.def(
      "even_parts",
      [](I64 node, Matrix64 weight, I64 indptr, I64 neighbor, I64 tie, Loads loads, Capacity capacity, int rule,
         double price, Part part) {
        return even_parts(checked_nodes(node, weight, indptr, neighbor, tie, part),
                          checked_loads(loads, capacity, weight), {static_cast<StreamRule>(rule), price}, part.data());
      },
      Release());
}

} // namespace hpcgnn
