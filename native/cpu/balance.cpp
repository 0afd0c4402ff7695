// Local search over an assignment of nodes to parts, one node after the other.
#include "hpcgnn/balance.h"

#include <algorithm>
#include <vector>

namespace hpcgnn::cpu {
namespace {

constexpr double kLeastGain = 1e-9; // smaller ones are rounding

double square_over(double load, double limit) {
  const double over = std::max(0.0, load - limit);
  return over * over;
}

class Search {
public:
  Search(const PartProblem &problem, double penalty, int32_t *part, double *loads)
      : problem_(problem), penalty_(std::max(0.0, penalty)), strict_(penalty < 0), part_(part), loads_(loads),
        ties_(problem.parts, 0.0), cost_(problem.parts) {}

  bool visit(int64_t node) {
    const int32_t home = part_[node];
    const double relief = -added_excess(node, home, -1);
    count_ties(node);
    const bool apart = touched_.size() > 1 || (touched_.size() == 1 && touched_[0] != home);
    const int32_t goal = relief > 0 || apart ? cheapest(node, home, relief) : home;
    for (const int32_t touched : touched_) {
      ties_[touched] = 0;
    }
    if (goal != home) {
      move(node, home, goal);
    }
    return goal != home;
  }

private:
  // What the squared excesses of a part rise by when the node comes (sign 1) or goes (-1).
  double added_excess(int64_t node, int64_t part, double sign) const {
    const int64_t constraints = problem_.constraints;
    const double *load = loads_ + part * constraints, *limit = problem_.limit + part * constraints;
    const double *weight = problem_.weight + node * constraints;
    double sum = 0;
    for (int64_t c = 0; c < constraints; ++c) {
      sum += square_over(load[c] + sign * weight[c], limit[c]) - square_over(load[c], limit[c]);
    }
    return sum;
  }

  // Weight of the node's ties to every part, in ties_, and the parts that have any, in touched_.
  void count_ties(int64_t node) {
    touched_.clear();
    for (int64_t entry = problem_.indptr[node]; entry < problem_.indptr[node + 1]; ++entry) {
      const int32_t there = part_[problem_.neighbor[entry]];
      if (ties_[there] == 0) {
        touched_.push_back(there);
      }
      ties_[there] += static_cast<double>(problem_.tie[entry]);
    }
  }

  int32_t cheapest(int64_t node, int32_t home, double relief) {
    std::fill(cost_.begin(), cost_.end(), 0.0);
    for (const int32_t touched : touched_) {
      const double *distance = problem_.distance + touched * problem_.parts;
      for (int64_t part = 0; part < problem_.parts; ++part) {
        cost_[part] += ties_[touched] * distance[part];
      }
    }
    int32_t best = home;
    double least = -kLeastGain;
    for (int32_t part = 0; part < problem_.parts; ++part) {
      const double bound = cost_[part] - cost_[home] - penalty_ * relief;
      if (part == home || bound >= least) {
        continue;
      }
      const double added = added_excess(node, part, 1);
      const double change = bound + penalty_ * added;
      if (change < least && (!strict_ || added <= relief)) {
        least = change;
        best = part;
      }
    }
    return best;
  }

  void move(int64_t node, int32_t home, int32_t goal) {
    const int64_t constraints = problem_.constraints;
    for (int64_t c = 0; c < constraints; ++c) {
      const double weight = problem_.weight[node * constraints + c];
      loads_[home * constraints + c] -= weight;
      loads_[goal * constraints + c] += weight;
    }
    part_[node] = goal;
  }

  const PartProblem &problem_;
  const double penalty_;
  const bool strict_;
  int32_t *part_;
  double *loads_;
  std::vector<double> ties_, cost_;
  std::vector<int32_t> touched_;
};

} // namespace

int64_t balance_parts(const PartProblem &problem, const int64_t *nodes, int64_t n, double penalty, int32_t *part,
                      double *loads) {
  Search search(problem, penalty, part, loads);
  int64_t moves = 0;
  for (int64_t i = 0; i < n; ++i) {
    moves += search.visit(nodes[i]) ? 1 : 0;
  }
  return moves;
}

} // namespace hpcgnn::cpu
