// Operations over lists of edges on CUDA; see segment_cpu.h. A column of a sum belongs to one thread: the additions of
// the CPU, in the same order.
#pragma once

#include "hpcgnn/cuda.h"
#include "hpcgnn/segment.h"

namespace hpcgnn::cuda {

template <typename Real>
void segment_sum(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
                 Stream stream);
template <typename Real>
void segment_max(const EdgeLists &lists, const Real *rows, int64_t width, Real *out, int64_t *winner, Stream stream);
template <typename Real>
void segment_max_backward(const EdgeLists &transposed, const Real *gradient, const int64_t *winner, int64_t width,
                          Real *grad_rows, Stream stream);
template <typename Real>
void edge_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, Stream stream);
template <typename Real>
void edge_attention(const EdgeLists &lists, const EdgeScores<Real> &scores, Real *weight, Stream stream);
template <typename Real>
void edge_attention_backward(const EdgeLists &lists, const EdgeScores<Real> &scores, const Real *weight,
                             Real *grad_score, Real *grad_target, Stream stream);

} // namespace hpcgnn::cuda
