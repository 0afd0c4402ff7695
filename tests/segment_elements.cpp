// The element functions of hpcgnn/segment.h run one after the other, as the CUDA build runs them by its threads; called
// by test_segment.py.
#include "hpcgnn/segment.h"

using namespace hpcgnn;

extern "C" {

void forward(const EdgeLists *lists, const double *rows, const double *source, const double *target, int64_t width,
             int32_t heads, double *weight, double *out, double *largest, int64_t *winner) {
  const EdgeScores<double> scores{source, target, heads, 0.2};
  for (int64_t segment = 0; segment < lists->segments; ++segment) {
    for (int32_t head = 0; head < heads; ++head) {
      edge_softmax(*lists, segment, scores, head, weight);
    }
    for (int64_t column = 0; column < width; ++column) {
      const int64_t at = segment * width + column;
      out[at] = segment_sum_column<double>(*lists, segment, rows, width, {weight, heads}, column);
      segment_max_column(*lists, segment, rows, width, column, largest + at, winner + at);
    }
  }
}

void backward(const EdgeLists *transposed, const double *gradient, const double *weight, const int64_t *winner,
              int64_t width, int32_t heads, double *grad_sum, double *grad_max) {
  for (int64_t source = 0; source < transposed->segments; ++source) {
    for (int64_t column = 0; column < width; ++column) {
      const int64_t at = source * width + column;
      grad_sum[at] = segment_sum_column<double>(*transposed, source, gradient, width, {weight, heads}, column);
      grad_max[at] = winner_sum_column(*transposed, source, gradient, winner, width, column);
    }
  }
}
}
