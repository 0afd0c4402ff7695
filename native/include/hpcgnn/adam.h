// The optimizer's step over one flat parameter, on the CPU.
#pragma once

#include <cstdint>

namespace hpcgnn {

// One step of Adam (Kingma and Ba: Adam: a method for stochastic optimization, 2015) or AdamW (Loshchilov and Hutter:
// Decoupled weight decay regularization, 2019) over n parameters. step: counted from 1.
struct Adam {
  int64_t step;
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;
};
template <typename Real>
void adam_step(const Adam &adam, int64_t n, const Real *gradient, Real *parameter, Real *mean, Real *square,
               int threads);

} // namespace hpcgnn
