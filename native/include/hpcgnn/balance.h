// Moving nodes between parts so that no load is above its limit and few ties are cut.
#pragma once

#include <cstdint>

namespace hpcgnn::cpu {

// N nodes, P parts, C constraints.
struct PartProblem {
  int64_t parts, constraints;
  const int64_t *indptr;   // [N + 1] symmetric lists of neighbours
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

} // namespace hpcgnn::cpu
