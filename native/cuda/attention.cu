// Temporal attention on CUDA: a warp a root forward and backward, then a row of threads a unique node. Deterministic.
#include "cuda/launch.h"
#include "hpcgnn/attention.h"

namespace hpcgnn {
namespace {

constexpr int kRootsPerBlock = 4;
constexpr size_t kMostShared = 48 << 10;

struct WarpLanes {
  __device__ int32_t index() const { return static_cast<int32_t>(threadIdx.x); }
  __device__ int32_t count() const { return kWarpThreads; }
  template <typename Real> __device__ Real sum(Real value) const {
    for (int step = kWarpThreads / 2; step > 0; step /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
  }
  __device__ void sync() const { __syncwarp(); }
};

// This warp's scores [H, K].
template <typename Real> __device__ Real *shared_scores(const AttentionInput<Real> &in) {
  return reinterpret_cast<Real *>(shared_memory()) + threadIdx.y * in.scores();
}

template <typename Real> __global__ void forward_kernel(AttentionInput<Real> in, Real *aggregate, Real *weight) {
  const int64_t root = row_index();
  if (root < in.roots) {
    attend(in, root, WarpLanes{}, shared_scores(in), aggregate, weight);
  }
}

template <typename Real>
__global__ void backward_kernel(AttentionInput<Real> in, const Real *weight, const Real *gradient, Real *grad_score,
                                Real *grad_query) {
  const int64_t root = row_index();
  if (root < in.roots) {
    attend_backward(in, root, WarpLanes{}, weight, gradient, shared_scores(in), grad_score, grad_query);
  }
}

template <typename Real>
__global__ void node_kernel(AttentionInput<Real> in, const int64_t *indptr, const int64_t *order, const Real *weight,
                            const Real *grad_score, const Real *gradient, Real *grad_node) {
  const int64_t node = row_index();
  if (node < in.unique) {
    for (int32_t column = threadIdx.x; column < in.node_width; column += blockDim.x) {
      grad_node[node * in.node_width + column] =
          node_gradient(in, node, column, indptr, order, weight, grad_score, gradient);
    }
  }
}

// partial [groups, T]: sums over kPhaseRoots roots each.
template <typename Real>
__global__ void phase_kernel(AttentionInput<Real> in, int64_t groups, const Real *weight, const Real *grad_score,
                             const Real *gradient, double *partial) {
  const int64_t group = row_index();
  if (group < groups) {
    const int64_t begin = group * kPhaseRoots, end = begin + kPhaseRoots;
    for (int32_t column = threadIdx.x; column < in.time_width; column += blockDim.x) {
      partial[group * in.time_width + column] =
          phase_gradient(in, begin, end < in.roots ? end : in.roots, column, weight, grad_score, gradient);
    }
  }
}

template <typename Real, typename... Parameters, typename... Arguments>
void launch_roots(void (*kernel)(AttentionInput<Real>, Parameters...), const AttentionInput<Real> &in, Stream stream,
                  Arguments... arguments) {
  const size_t shared = kRootsPerBlock * in.scores() * sizeof(Real);
  if (shared > kMostShared) {
    throw std::runtime_error("attention on CUDA takes at most " +
                             std::to_string(kMostShared / kRootsPerBlock / sizeof(Real)) + " heads x neighbors, got " +
                             std::to_string(in.scores()));
  }
  if (in.roots > 0) {
    const unsigned blocks = static_cast<unsigned>((in.roots + kRootsPerBlock - 1) / kRootsPerBlock);
    launch<true>(kernel, blocks, dim3(kWarpThreads, kRootsPerBlock), shared, stream, in, arguments...);
  }
}

} // namespace

template <typename Real>
void attention_forward(const AttentionInput<Real> &in, Real *aggregate, Real *weight, Stream stream) {
  launch_roots(forward_kernel<Real>, in, stream, aggregate, weight);
}

template <typename Real>
void attention_backward(const AttentionInput<Real> &in, const Real *weight, const Real *gradient,
                        const int64_t *slot_indptr, const int64_t *slot_order, Real *grad_score, Real *grad_query,
                        Real *grad_node, double *grad_phase, Stream stream) {
  launch_roots(backward_kernel<Real>, in, stream, weight, gradient, grad_score, grad_query);
  launch_rows(node_kernel<Real>, in.unique, in.node_width, kBlockThreads, stream, in, slot_indptr, slot_order, weight,
              static_cast<const Real *>(grad_score), gradient, grad_node);
  if (grad_phase != nullptr) {
    const int64_t groups = (in.roots + kPhaseRoots - 1) / kPhaseRoots;
    launch_rows(phase_kernel<Real>, groups, in.time_width, kBlockThreads, stream, in, groups, weight,
                static_cast<const Real *>(grad_score), gradient, grad_phase);
  }
}

template void attention_forward(const AttentionInput<float> &, float *, float *, Stream);
template void attention_forward(const AttentionInput<double> &, double *, double *, Stream);
template void attention_backward(const AttentionInput<float> &, const float *, const float *, const int64_t *,
                                 const int64_t *, float *, float *, float *, double *, Stream);
template void attention_backward(const AttentionInput<double> &, const double *, const double *, const int64_t *,
                                 const int64_t *, double *, double *, double *, double *, Stream);

} // namespace hpcgnn
