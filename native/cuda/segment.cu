// Sums, maxima and attention over lists of edges on CUDA: threads of a row walk the columns of a segment, or its heads.
#include "cuda/launch.h"
#include "hpcgnn/segment.h"

namespace hpcgnn {
namespace {

template <typename Real>
__global__ void sum_kernel(EdgeLists lists, const Real *__restrict__ rows, int64_t width, EdgeWeights<Real> weights,
                           Real *__restrict__ out) {
  const int64_t segment = row_index();
  if (segment < lists.segments) {
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      out[segment * width + column] = segment_sum_column(lists, segment, rows, width, weights, column);
    }
  }
}

template <typename Real>
__global__ void max_kernel(EdgeLists lists, const Real *__restrict__ rows, int64_t width, Real *__restrict__ out,
                           int64_t *__restrict__ winner) {
  const int64_t segment = row_index();
  if (segment < lists.segments) {
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      const int64_t at = segment * width + column;
      segment_max_column(lists, segment, rows, width, column, out + at, winner + at);
    }
  }
}

template <typename Real>
__global__ void max_backward_kernel(EdgeLists transposed, const Real *__restrict__ gradient,
                                    const int64_t *__restrict__ winner, int64_t width, Real *__restrict__ grad_rows) {
  const int64_t source = row_index();
  if (source < transposed.segments) {
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      grad_rows[source * width + column] = winner_sum_column(transposed, source, gradient, winner, width, column);
    }
  }
}

// A thread an entry and head.
template <typename Real>
__global__ void products_kernel(EdgeLists lists, const Real *__restrict__ segment_rows, const Real *__restrict__ rows,
                                int64_t width, int32_t heads, Real *__restrict__ product) {
  const int64_t segment = row_index(), columns = width / heads;
  if (segment < lists.segments) {
    const int64_t begin = lists.indptr[segment], count = lists.size(segment) * heads;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const int64_t entry = begin + i / heads, head = i % heads;
      const Real *a = segment_rows + segment * width + head * columns;
      const Real *b = rows + lists.row[entry] * width + head * columns;
      Real sum = 0;
      for (int64_t column = 0; column < columns; ++column) {
        sum += a[column] * b[column];
      }
      product[lists.edge_of(entry) * heads + head] = sum;
    }
  }
}

template <typename Real> __global__ void attention_kernel(EdgeLists lists, EdgeScores<Real> scores, Real *weight) {
  const int64_t segment = row_index();
  if (segment < lists.segments) {
    for (int32_t head = threadIdx.x; head < scores.heads; head += blockDim.x) {
      edge_softmax(lists, segment, scores, head, weight);
    }
  }
}

template <typename Real>
__global__ void attention_backward_kernel(EdgeLists lists, EdgeScores<Real> scores, const Real *weight,
                                          Real *grad_score, Real *grad_target) {
  const int64_t segment = row_index();
  if (segment < lists.segments) {
    for (int32_t head = threadIdx.x; head < scores.heads; head += blockDim.x) {
      grad_target[segment * scores.heads + head] =
          edge_softmax_backward(lists, segment, scores, head, weight, grad_score);
    }
  }
}

} // namespace

template <typename Real>
void segment_sum(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
                 Stream stream) {
  launch_rows(sum_kernel<Real>, lists.segments, width, kBlockThreads, stream, lists, rows, width, weights, out);
}

template <typename Real>
void segment_max(const EdgeLists &lists, const Real *rows, int64_t width, Real *out, int64_t *winner, Stream stream) {
  launch_rows(max_kernel<Real>, lists.segments, width, kBlockThreads, stream, lists, rows, width, out, winner);
}

template <typename Real>
void segment_max_backward(const EdgeLists &transposed, const Real *gradient, const int64_t *winner, int64_t width,
                          Real *grad_rows, Stream stream) {
  launch_rows(max_backward_kernel<Real>, transposed.segments, width, kBlockThreads, stream, transposed, gradient,
              winner, width, grad_rows);
}

template <typename Real>
void edge_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, Stream stream) {
  launch_rows(products_kernel<Real>, lists.segments, kWarpThreads, kWarpThreads, stream, lists, segment_rows, rows,
              width, heads, product);
}

template <typename Real>
void edge_attention(const EdgeLists &lists, const EdgeScores<Real> &scores, Real *weight, Stream stream) {
  launch_rows(attention_kernel<Real>, lists.segments, scores.heads, kWarpThreads, stream, lists, scores, weight);
}

template <typename Real>
void edge_attention_backward(const EdgeLists &lists, const EdgeScores<Real> &scores, const Real *weight,
                             Real *grad_score, Real *grad_target, Stream stream) {
  launch_rows(attention_backward_kernel<Real>, lists.segments, scores.heads, kWarpThreads, stream, lists, scores,
              weight, grad_score, grad_target);
}

#define HPCGNN_INSTANTIATE(Real)                                                                                       \
  template void segment_sum(const EdgeLists &, const Real *, int64_t, const EdgeWeights<Real> &, Real *, Stream);      \
  template void segment_max(const EdgeLists &, const Real *, int64_t, Real *, int64_t *, Stream);                      \
  template void segment_max_backward(const EdgeLists &, const Real *, const int64_t *, int64_t, Real *, Stream);       \
  template void edge_products(const EdgeLists &, const Real *, const Real *, int64_t, int32_t, Real *, Stream);        \
  template void edge_attention(const EdgeLists &, const EdgeScores<Real> &, Real *, Stream);                           \
  template void edge_attention_backward(const EdgeLists &, const EdgeScores<Real> &, const Real *, Real *, Real *,     \
                                        Stream);
HPCGNN_INSTANTIATE(float)
HPCGNN_INSTANTIATE(double)
#undef HPCGNN_INSTANTIATE

} // namespace hpcgnn
