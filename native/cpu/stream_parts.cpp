// Streaming partitioners on the CPU, one node after the other: the answer depends on the order of the nodes alone.
#include <algorithm>
#include <vector>

#include "hpcgnn/cpu.h"

namespace hpcgnn::cpu {
namespace {

// Weight of the edges of one node to every part; zero again when forgotten.
class Ties {
public:
  Ties(const StreamNodes &nodes, const int32_t *part, int64_t parts) : nodes_(nodes), part_(part), ties_(parts, 0.0) {}

  const double *count(int64_t row) {
    each(row, [this](int64_t entry, int32_t other) { ties_[other] += static_cast<double>(nodes_.tie[entry]); });
    return ties_.data();
  }

  void forget(int64_t row) {
    if (nodes_.indptr[row + 1] - nodes_.indptr[row] < static_cast<int64_t>(ties_.size())) {
      each(row, [this](int64_t, int32_t other) { ties_[other] = 0.0; });
    } else {
      std::fill(ties_.begin(), ties_.end(), 0.0);
    }
  }

private:
  template <typename Use> void each(int64_t row, Use use) {
    for (int64_t entry = nodes_.indptr[row]; entry < nodes_.indptr[row + 1]; ++entry) {
      const int32_t other = part_[nodes_.neighbor[entry]];
      if (0 <= other && other < static_cast<int64_t>(ties_.size())) {
        use(entry, other);
      }
    }
  }

  const StreamNodes &nodes_;
  const int32_t *part_;
  std::vector<double> ties_;
};

} // namespace

void stream_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part) {
  Ties ties(nodes, part, loads.parts);
  for (int64_t row = 0; row < nodes.count; ++row) {
    const int64_t *weight = nodes.weight + row * loads.constraints;
    const int64_t chosen = choose_part(loads, score, ties.count(row), weight);
    ties.forget(row);
    add_load(loads, chosen, weight, 1.0);
    part[nodes.node[row]] = static_cast<int32_t>(chosen);
  }
}

int64_t even_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part) {
  Ties ties(nodes, part, loads.parts);
  int64_t moved = 0;
  for (int64_t row = nodes.count - 1; row >= 0; --row) {
    const int64_t *weight = nodes.weight + row * loads.constraints;
    const int32_t home = part[nodes.node[row]];
    if (home < 0 || home >= loads.parts || filled_by(loads, home, weight).before <= 1.0) {
      continue;
    }
    add_load(loads, home, weight, -1.0);
    const int64_t chosen = relieving_part(loads, score, ties.count(row), weight, home);
    ties.forget(row);
    add_load(loads, chosen, weight, 1.0);
    part[nodes.node[row]] = static_cast<int32_t>(chosen);
    moved += chosen != home;
  }
  return moved;
}

} // namespace hpcgnn::cpu
