// Binding of the optimizer's step.
#include "hpcgnn/adam.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ module) {
  module.def(
      "adam_step",
      [](int64_t step, double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
         int64_t size, uintptr_t gradient, uintptr_t parameter, uintptr_t mean, uintptr_t square, int threads) {
        adam_step({step, lr, beta1, beta2, eps, weight_decay, decoupled}, size, at<const Real>(gradient),
                  at<Real>(parameter), at<Real>(mean), at<Real>(square), threads);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(adam) {
  bind_kernels<float>(precision<float>(module));
  bind_kernels<double>(precision<double>(module));
}

} // namespace hpcgnn
