// Which part a node joins when the nodes of a graph come one after the other: linear deterministic greedy (Stanton and
// Kliot, "Streaming graph partitioning for large distributed graphs", 2012) and Fennel (Tsourakakis et al., 2014), with
// several capacities. P parts, C constraints.
#pragma once

#include <cmath>

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

// As numbered in Python.
enum class StreamRule : int32_t { Ldg = 0, Fennel = 1 };

struct StreamLoads {
  double *loads;          // [P, C]
  const double *capacity; // [C], above 0
  int64_t parts;
  int32_t constraints;
};

struct StreamScore {
  StreamRule rule;
  double price; // Fennel's, of a part filled to its capacity

  // ties: weight of the edges to nodes of a part; filled: how full it is of what the node weighs, 1 at the capacity.
  double of(double ties, double filled) const {
    if (rule == StreamRule::Ldg) {
      return ties * (1.0 - filled);
    }
    return ties - price * std::sqrt(filled); // gamma = 1.5
  }
};

// How full a part is of what a node weighs, and how full it would be with it.
struct Filled {
  double before, after;
};

inline Filled filled_by(const StreamLoads &loads, int64_t part, const int64_t *weight) {
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

inline void add_load(const StreamLoads &loads, int64_t part, const int64_t *weight, double sign) {
  for (int32_t c = 0; c < loads.constraints; ++c) {
    loads.loads[part * loads.constraints + c] += sign * static_cast<double>(weight[c]);
  }
}

// The part with the best score among those that have room; of equal ones the emptier, then the one with the smaller
// number. Without room anywhere: the part that is least overfull with the node.
inline int64_t choose_part(const StreamLoads &loads, const StreamScore &score, const double *ties,
                           const int64_t *weight) {
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
    const double found = score.of(ties[part], filled.before);
    if (best < 0 || found > best_score || (found == best_score && filled.before < best_filled)) {
      best = part;
      best_score = found;
      best_filled = filled.before;
    }
  }
  return best >= 0 ? best : least;
}

// By how much the squared excess of a part over its capacities grows with a node.
inline double excess_of(const StreamLoads &loads, int64_t part, const int64_t *weight) {
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
inline int64_t relieving_part(const StreamLoads &loads, const StreamScore &score, const double *ties,
                              const int64_t *weight, int64_t home) {
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
      const double found = score.of(ties[part], filled_by(loads, part, weight).before);
      best = found > best_score ? part : best;
      best_score = found > best_score ? found : best_score;
    }
  }
  return best;
}

} // namespace hpcgnn
