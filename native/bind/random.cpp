// Bindings of keyed random integers and dropout masks.
#include "hpcgnn/random.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_dropout(nb::module_ &module) {
  module.def(
      "dropout_mask",
      [](const RandomContext &context, I64 identity, double p, Array<Real, 2> mask, int64_t execution) {
        require(identity.shape(0) == mask.shape(0), "identity and mask must have the same first dimension");
        dropout_mask<Real>(context, identity.data(), mask.shape(0), static_cast<int32_t>(mask.shape(1)), p, mask.data(),
                           execution);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(random) {
  module.def(
      "random_integers",
      [](const RandomContext &context, I64 identity, uint32_t bound, Array<int64_t, 2> out, int64_t execution) {
        require(identity.shape(0) == out.shape(0) && bound > 0,
                "identity and out must have the same first dimension; bound > 0");
        random_integers(context, identity.data(), out.shape(0), static_cast<int32_t>(out.shape(1)), bound, out.data(),
                        execution);
      },
      Release());
  bind_dropout<float>(module);
  bind_dropout<double>(module);
}

} // namespace hpcgnn
