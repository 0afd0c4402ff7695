// Sums and attention over lists of edges. Segment s has the entries indptr[s] .. indptr[s + 1] - 1; entry j shows row
// row[j] and is edge edge[j] (edge null: edge j). A graph's in-edges are such lists (row: sources); so is their
// transpose (row: destinations), which is how gradients return: every sum runs in the order of its list, whatever the
// thread. H heads, each of an equal share of the columns.
#pragma once

#include "hpcgnn/base/activation.h"
#include "hpcgnn/base/execution.h"

namespace hpcgnn {

struct EdgeLists {
  int64_t segments;
  const int64_t *indptr, *row, *edge;

  HPCGNN_HD int64_t edge_of(int64_t entry) const { return edge == nullptr ? entry : edge[entry]; }
  HPCGNN_HD int64_t size(int64_t segment) const { return indptr[segment + 1] - indptr[segment]; }
};

// Weights [E, H] of the edges; null: 1.
template <typename Real> struct EdgeWeights {
  const Real *weight;
  int32_t heads;
};

template <typename Real>
HPCGNN_HD Real segment_sum_column(const EdgeLists &lists, int64_t segment, const Real *rows, int64_t width,
                                  const EdgeWeights<Real> &weights, int64_t column) {
  const int64_t head = weights.weight == nullptr ? 0 : column / (width / weights.heads);
  Real sum = 0;
  for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
    const Real value = rows[lists.row[j] * width + column];
    sum += weights.weight == nullptr ? value : weights.weight[lists.edge_of(j) * weights.heads + head] * value;
  }
  return sum;
}

// Whether a value takes the place of the largest so far: it is larger, or the first NaN.
template <typename Real> HPCGNN_HD bool is_larger(Real value, Real largest) {
  return largest == largest && (value > largest || value != value);
}

// The largest value of a column and the first edge that shows it; 0 and -1 for an empty segment.
template <typename Real>
HPCGNN_HD void segment_max_column(const EdgeLists &lists, int64_t segment, const Real *rows, int64_t width,
                                  int64_t column, Real *largest, int64_t *winner) {
  Real value = 0;
  int64_t edge = -1;
  for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
    const Real candidate = rows[lists.row[j] * width + column];
    if (edge < 0 || is_larger(candidate, value)) {
      value = candidate;
      edge = lists.edge_of(j);
    }
  }
  *largest = value;
  *winner = edge;
}

// What a source's column gets from the segments (the rows of the transposed lists) in which it won.
template <typename Real>
HPCGNN_HD Real winner_sum_column(const EdgeLists &transposed, int64_t source, const Real *gradient,
                                 const int64_t *winner, int64_t width, int64_t column) {
  Real sum = 0;
  for (int64_t j = transposed.indptr[source]; j < transposed.indptr[source + 1]; ++j) {
    const int64_t at = transposed.row[j] * width + column;
    sum += winner[at] == transposed.edge_of(j) ? gradient[at] : Real(0);
  }
  return sum;
}

// Scores of edges: leaky_relu(source[row, head] + target[segment, head]).
template <typename Real> struct EdgeScores {
  const Real *source, *target; // [rows, H], [segments, H]
  int32_t heads;
  Real slope;

  HPCGNN_HD Real before(int64_t row, int64_t segment, int64_t head) const {
    return source[row * heads + head] + target[segment * heads + head];
  }
  HPCGNN_HD Real score(int64_t row, int64_t segment, int64_t head) const {
    const Real sum = before(row, segment, head);
    return sum > Real(0) ? sum : slope * sum;
  }
};

// weight [E, H]: softmax of the scores of one segment and head.
template <typename Real>
HPCGNN_HD void edge_softmax(const EdgeLists &lists, int64_t segment, const EdgeScores<Real> &scores, int64_t head,
                            Real *weight) {
  const int64_t begin = lists.indptr[segment], end = lists.indptr[segment + 1];
  Real largest = 0, sum = 0;
  for (int64_t j = begin; j < end; ++j) {
    const Real score = scores.score(lists.row[j], segment, head);
    largest = j == begin || score > largest ? score : largest;
  }
  for (int64_t j = begin; j < end; ++j) {
    const Real value = exponential(scores.score(lists.row[j], segment, head) - largest);
    weight[lists.edge_of(j) * scores.heads + head] = value;
    sum += value;
  }
  for (int64_t j = begin; j < end; ++j) {
    weight[lists.edge_of(j) * scores.heads + head] /= sum;
  }
}

// From the gradient of the weights to grad_score [E, H], that of source + target, which takes its place; returns its
// sum, the target's gradient.
template <typename Real>
HPCGNN_HD Real edge_softmax_backward(const EdgeLists &lists, int64_t segment, const EdgeScores<Real> &scores,
                                     int64_t head, const Real *weight, Real *grad_score) {
  const int64_t begin = lists.indptr[segment], end = lists.indptr[segment + 1];
  Real mean = 0, total = 0;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t at = lists.edge_of(j) * scores.heads + head;
    mean += weight[at] * grad_score[at];
  }
  for (int64_t j = begin; j < end; ++j) {
    const int64_t at = lists.edge_of(j) * scores.heads + head;
    const Real slope = scores.before(lists.row[j], segment, head) > Real(0) ? Real(1) : scores.slope;
    grad_score[at] = weight[at] * (grad_score[at] - mean) * slope;
    total += grad_score[at];
  }
  return total;
}

// W columns, E edges. out [segments, W]: weighted sums of rows.
template <typename Real>
void segment_sum(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
                 Execution execution);
// out, winner [segments, W].
template <typename Real>
void segment_max(const EdgeLists &lists, const Real *rows, int64_t width, Real *out, int64_t *winner,
                 Execution execution);
// grad_rows [sources, W] from the gradient [segments, W], by the transposed lists.
template <typename Real>
void segment_max_backward(const EdgeLists &transposed, const Real *gradient, const int64_t *winner, int64_t width,
                          Real *grad_rows, Execution execution);
// product [E, H] of a segment's row [segments, W] with the rows of its entries, head by head. The columns of a product
// are added up in the order of the processor's vectors: the last bits are those of the machine.
template <typename Real>
void edge_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, Execution execution);
// weight [E, H].
template <typename Real>
void edge_attention(const EdgeLists &lists, const EdgeScores<Real> &scores, Real *weight, Execution execution);
// grad_score [E, H]: given the weights' gradient, becomes the scores'; grad_target [segments, H].
template <typename Real>
void edge_attention_backward(const EdgeLists &lists, const EdgeScores<Real> &scores, const Real *weight,
                             Real *grad_score, Real *grad_target, Execution execution);

} // namespace hpcgnn
