// Adam over one flat parameter: a single pass over its four arrays.
#include "hpcgnn/adam.h"

#include <cmath>

#include "hpcgnn/base/team.h"

namespace hpcgnn {

template <typename Real>
void adam_step(const Adam &adam, int64_t n, const Real *gradient, Real *parameter, Real *mean, Real *square,
               int threads) {
  const double steps = static_cast<double>(adam.step);
  const Real beta1 = static_cast<Real>(adam.beta1), beta2 = static_cast<Real>(adam.beta2);
  const Real size = static_cast<Real>(adam.lr / (1.0 - std::pow(adam.beta1, steps)));
  const Real root = static_cast<Real>(1.0 / std::sqrt(1.0 - std::pow(adam.beta2, steps)));
  const Real eps = static_cast<Real>(adam.eps), coupled = static_cast<Real>(adam.decoupled ? 0.0 : adam.weight_decay);
  const Real kept = static_cast<Real>(adam.decoupled ? 1.0 - adam.lr * adam.weight_decay : 1.0);
  in_parallel(n < (1 << 15) ? 1 : threads, [&](const Team &team) {
    const Range part = team.share(n, 16);
#pragma omp simd
    for (int64_t i = part.begin; i < part.end; ++i) {
      const Real g = gradient[i] + coupled * parameter[i];
      const Real m = mean[i] + (Real(1) - beta1) * (g - mean[i]);
      const Real v = beta2 * square[i] + (Real(1) - beta2) * g * g;
      mean[i] = m;
      square[i] = v;
      parameter[i] = kept * parameter[i] - size * m / (std::sqrt(v) * root + eps);
    }
  });
}

template void adam_step(const Adam &, int64_t, const float *, float *, float *, float *, int);
template void adam_step(const Adam &, int64_t, const double *, double *, double *, double *, int);

} // namespace hpcgnn
