// Which part each node of a graph belongs to, on the CPU: local search over an assignment, and assignment of nodes that
// come one after the other. N nodes, P parts, C constraints.
#pragma once

#include <cstdint>

namespace hpcgnn {

// For local search: nodes move between parts so that no load is above its limit and few ties are cut.
struct PartProblem {
  int64_t parts, constraints;
  const int64_t *indptr;   // [N + 1] symmetric lists of neighbors
  const int64_t *neighbor; // [entries]
  const int64_t *tie;      // [entries] what a tie weighs
  const double *distance;  // [P, P] what a tie of weight 1 between two parts costs
  const double *weight;    // [N, C]
  const double *limit;     // [P, C] of the loads
};

// Visits nodes [n] in order and moves each to where the sum of its ties' cost and of `penalty` times the squared
// excesses of loads over their limits is least; with a penalty below 0 to where its ties cost least without more
// excess. part [N] and loads [P, C] change in place. Returns the number of moves.
int64_t balance_parts(const PartProblem &problem, const int64_t *nodes, int64_t n, double penalty, int32_t *part,
                      double *loads);

// Rules for nodes that come one after the other, as numbered in Python: linear deterministic greedy (Stanton and Kliot,
// "Streaming graph partitioning for large distributed graphs", 2012) and Fennel (Tsourakakis et al., 2014), with
// several capacities.
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
};

struct StreamNodes {
  const int64_t *node;   // [count]
  const int64_t *weight; // [count, C]
  const int64_t *indptr; // [count + 1]
  const int64_t *neighbor, *tie;
  int64_t count;
};
// Assigns nodes to parts one after the other: part [N of the graph] (-1: none yet) and the loads change; parts of nodes
// that come later count as ties only. Or moves nodes, the last first, out of parts that are over capacity; loads are
// those of all nodes. Returns how many were moved.
void stream_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part);
int64_t even_parts(const StreamNodes &nodes, const StreamLoads &loads, const StreamScore &score, int32_t *part);

} // namespace hpcgnn
