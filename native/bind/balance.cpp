// CPU operation of partitioning: evening out the loads of parts.
#include "hpcgnn/balance.h"
#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename T, int Dims> using Host = Array<T, Dims, nb::device::cpu>;
using I64 = Host<const int64_t, 1>;
using Table = Host<const double, 2>;

bool all_below(const int64_t *values, size_t n, int64_t bound) {
  for (size_t i = 0; i < n; ++i) {
    if (values[i] < 0 || values[i] >= bound) {
      return false;
    }
  }
  return true;
}

int64_t balance_parts(I64 indptr, I64 neighbor, I64 tie, Table distance, Table weight, Table limit, I64 nodes,
                      double penalty, Host<int32_t, 1> part, Host<double, 2> loads) {
  const size_t count = part.shape(0), parts = loads.shape(0), constraints = loads.shape(1);
  require(indptr.shape(0) == count + 1 && neighbor.shape(0) == tie.shape(0) &&
              indptr.data()[count] == static_cast<int64_t>(neighbor.shape(0)),
          "indptr [nodes + 1], neighbor and tie [entries]");
  require(distance.shape(0) == parts && distance.shape(1) == parts && weight.shape(0) == count &&
              weight.shape(1) == constraints && limit.shape(0) == parts && limit.shape(1) == constraints,
          "distance [parts, parts], weight [nodes, constraints], limit and loads [parts, constraints]");
  require(all_below(nodes.data(), nodes.shape(0), static_cast<int64_t>(count)), "nodes must be below their number");
  for (size_t node = 0; node < count; ++node) {
    require(part.data()[node] >= 0 && static_cast<size_t>(part.data()[node]) < parts, "a part of every node");
  }
  const cpu::PartProblem problem{static_cast<int64_t>(parts),
                                 static_cast<int64_t>(constraints),
                                 indptr.data(),
                                 neighbor.data(),
                                 tie.data(),
                                 distance.data(),
                                 weight.data(),
                                 limit.data()};
  return cpu::balance_parts(problem, nodes.data(), static_cast<int64_t>(nodes.shape(0)), penalty, part.data(),
                            loads.data());
}

} // namespace

void bind_balance(nb::module_ &module) { module.def("balance_parts", &balance_parts, Release()); }

} // namespace hpcgnn
