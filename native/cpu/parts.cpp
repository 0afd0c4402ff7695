// Assignment of nodes to parts on the CPU, one node after the other: the answer depends on their order alone.
#include "hpcgnn/parts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hpcgnn {
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
      if (problem_.tie[entry] == 0) {
        continue;
      }
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

// ties: weight of the edges to nodes of a part; filled: how full it is of what the node weighs, 1 at the capacity.
double score_of(const StreamScore &score, double ties, double filled) {
  if (score.rule == StreamRule::Ldg) {
    return ties * (1.0 - filled);
  }
  return ties - score.price * std::sqrt(filled); // gamma = 1.5
}

// How full a part is of what a node weighs, and how full it would be with it.
struct Filled {
  double before, after;
};

Filled filled_by(const StreamLoads &loads, int64_t part, const int64_t *weight) {
  Filled result{0.0, 0.0};
  const double *load = loads.loads + part * loads.constraints;
  for (int32_t c = 0; c < loads.constraints; ++c) {
    if (weight[c] > 0) {
      const double before = load[c] / loads.capacity[c];
      const double after = (load[c] + static_cast<double>(weight[c])) / loads.capacity[c];
      result.before = before > result.before ? before : result.before;
      result.after = after > result.after ? after : result.after;
    }
  }
  return result;
}

void add_load(const StreamLoads &loads, int64_t part, const int64_t *weight, double sign) {
  for (int32_t c = 0; c < loads.constraints; ++c) {
    loads.loads[part * loads.constraints + c] += sign * static_cast<double>(weight[c]);
  }
}

// The part with the best score among those that have room; of equal ones the emptier, then the one with the smaller
// number. Without room anywhere: the part that is least overfull with the node.
int64_t choose_part(const StreamLoads &loads, const StreamScore &score, const double *ties, const int64_t *weight) {
  int64_t best = -1, least = 0;
  double best_score = 0.0, best_filled = 0.0, least_after = INFINITY;
  for (int64_t part = 0; part < loads.parts; ++part) {
    const Filled filled = filled_by(loads, part, weight);
    if (filled.after < least_after) {
      least = part;
      least_after = filled.after;
    }
    if (filled.after > 1.0) {
      continue;
    }
    const double value = score_of(score, ties[part], filled.before);
    if (best < 0 || value > best_score || (value == best_score && filled.before < best_filled)) {
      best = part;
      best_score = value;
      best_filled = filled.before;
    }
  }
  return best >= 0 ? best : least;
}

// By how much the squared excess of a part over its capacities grows with a node.
double excess_of(const StreamLoads &loads, int64_t part, const int64_t *weight) {
  double excess = 0.0;
  const double *load = loads.loads + part * loads.constraints;
  for (int32_t c = 0; c < loads.constraints; ++c) {
    const double before = load[c] / loads.capacity[c] - 1.0;
    const double after = (load[c] + static_cast<double>(weight[c])) / loads.capacity[c] - 1.0;
    excess += (after > 0.0 ? after * after : 0.0) - (before > 0.0 ? before * before : 0.0);
  }
  return excess;
}

// Where a node that was taken out of an overfull part goes: of the parts that lower the sum of squared excesses by at
// least half as much as the best of them does, the one with the best score; home where none lowers it. So parts that
// are overfull of different things exchange nodes.
int64_t relieving_part(const StreamLoads &loads, const StreamScore &score, const double *ties, const int64_t *weight,
                       int64_t home) {
  const double at_home = excess_of(loads, home, weight);
  double most = 0.0;
  for (int64_t part = 0; part < loads.parts; ++part) {
    const double relief = at_home - excess_of(loads, part, weight);
    most = relief > most ? relief : most;
  }
  int64_t best = home;
  double best_score = -INFINITY;
  for (int64_t part = 0; most > 0.0 && part < loads.parts; ++part) {
    if (part != home && at_home - excess_of(loads, part, weight) >= most / 2) {
      const double value = score_of(score, ties[part], filled_by(loads, part, weight).before);
      best = value > best_score ? part : best;
      best_score = value > best_score ? value : best_score;
    }
  }
  return best;
}

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

int64_t balance_parts(const PartProblem &problem, const int64_t *nodes, int64_t n, double penalty, int32_t *part,
                      double *loads) {
  Search search(problem, penalty, part, loads);
  int64_t moves = 0;
  for (int64_t i = 0; i < n; ++i) {
    moves += search.visit(nodes[i]) ? 1 : 0;
  }
  return moves;
}

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

} // namespace hpcgnn
