// The elementwise part of a gated recurrent unit (Cho et al., 2014), forward and backward in one pass each.
#include "hpcgnn/gru.h"

#include "hpcgnn/base/activation.h"

namespace hpcgnn {

template <typename Real>
void gru_forward(const Real *from_input, const Real *from_state, const Real *state, int64_t n, int64_t width, Real *out,
                 Real *gates, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * width > (1 << 14))
  for (int64_t i = 0; i < n; ++i) {
    const Real *from = from_input + 3 * width * i, *own = from_state + 3 * width * i, *old = state + width * i;
    Real *reset = gates + 3 * width * i, *update = reset + width, *candidate = update + width;
    Real *next = out + width * i;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const Real r = logistic(from[j] + own[j]);
      const Real z = logistic(from[width + j] + own[width + j]);
      const Real c = hyperbolic_tangent(from[2 * width + j] + r * own[2 * width + j]);
      reset[j] = r;
      update[j] = z;
      candidate[j] = c;
      next[j] = c + z * (old[j] - c);
    }
  }
}

template <typename Real>
void gru_backward(const Real *gradient, const Real *from_state, const Real *state, const Real *gates, int64_t n,
                  int64_t width, Real *grad_from_input, Real *grad_from_state, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * width > (1 << 14))
  for (int64_t i = 0; i < n; ++i) {
    const Real *own = from_state + 3 * width * i + 2 * width, *old = state + width * i, *grad = gradient + width * i;
    const Real *reset = gates + 3 * width * i, *update = reset + width, *candidate = update + width;
    Real *to_input = grad_from_input + 3 * width * i, *to_state = grad_from_state + 3 * width * i;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const Real r = reset[j], z = update[j], c = candidate[j], g = grad[j];
      const Real before_c = g * (Real(1) - z) * (Real(1) - c * c);
      const Real before_r = before_c * own[j] * r * (Real(1) - r);
      const Real before_z = g * (old[j] - c) * z * (Real(1) - z);
      to_input[j] = to_state[j] = before_r;
      to_input[width + j] = to_state[width + j] = before_z;
      to_input[2 * width + j] = before_c;
      to_state[2 * width + j] = before_c * r;
    }
  }
}

template void gru_forward<float>(const float *, const float *, const float *, int64_t, int64_t, float *, float *, int);
template void gru_forward<double>(const double *, const double *, const double *, int64_t, int64_t, double *, double *,
                                  int);
template void gru_backward<float>(const float *, const float *, const float *, const float *, int64_t, int64_t, float *,
                                  float *, int);
template void gru_backward<double>(const double *, const double *, const double *, const double *, int64_t, int64_t,
                                   double *, double *, int);

} // namespace hpcgnn
