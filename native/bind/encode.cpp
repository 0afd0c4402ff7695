// Binding of the time encoding.
#include "hpcgnn/encode.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_time_encode(nb::module_ &module) {
  module.def(
      "time_encode",
      [](I64 dt, Array<const double, 1> frequency, Array<const double, 1> phase, Array<Real, 2> cosine,
         Array<Real, 2> sine, int threads) {
        require(cosine.shape(0) == dt.shape(0) && cosine.shape(1) == frequency.shape(0), "cosine [n, width]");
        const bool with_sine = sine.shape(0) == cosine.shape(0);
        time_encode(dt.data(), dt.shape(0), frequency.data(), phase.data(), frequency.shape(0), cosine.data(),
                    with_sine ? sine.data() : nullptr, threads);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(encode) {
  bind_time_encode<float>(module);
  bind_time_encode<double>(module);
}

} // namespace hpcgnn
