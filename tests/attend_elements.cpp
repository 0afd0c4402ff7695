// The element functions of hpcgnn/attend.h run root by root by a single lane, as the CUDA build runs them by the lanes
// of a warp; called by test_attend.py.
#include <vector>

#include "hpcgnn/attend.h"

using namespace hpcgnn;

extern "C" {

void forward(const AttentionInput<double> *in, double *aggregate, double *weight) {
  std::vector<double> score(in->scores());
  for (int64_t root = 0; root < in->roots; ++root) {
    attend(*in, root, SingleLane{}, score.data(), aggregate, weight);
  }
}

void backward(const AttentionInput<double> *in, const double *weight, const double *gradient, const int64_t *indptr,
              const int64_t *order, double *grad_score, double *grad_query, double *grad_node, double *grad_phase) {
  std::vector<double> score(in->scores());
  for (int64_t root = 0; root < in->roots; ++root) {
    attend_backward(*in, root, SingleLane{}, weight, gradient, score.data(), grad_score, grad_query);
  }
  for (int64_t node = 0; node < in->unique; ++node) {
    for (int32_t column = 0; column < in->node_width; ++column) {
      grad_node[node * in->node_width + column] =
          node_gradient(*in, node, column, indptr, order, weight, grad_score, gradient);
    }
  }
  for (int32_t column = 0; column < in->time_width; ++column) {
    grad_phase[column] = phase_gradient(*in, 0, in->roots, column, weight, grad_score, gradient);
  }
}
}
