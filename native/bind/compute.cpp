// CPU operations of execution: rows, time encoding, gates of a recurrent unit.
#include "bind/shared.h"
#include "hpcgnn/cpu.h"

namespace hpcgnn {
namespace {

struct Cpu {
  using Device = nb::device::cpu;
  static constexpr auto gather_rows = &cpu::gather_rows;
  static constexpr auto scatter_rows = &cpu::scatter_rows;
  template <typename Real> static constexpr auto segment_sum_rows = &cpu::segment_sum_rows<Real>;
};

template <typename T, int Dims> using Host = Array<T, Dims, nb::device::cpu>;

template <typename Real> void bind_time_encode(nb::module_ &module) {
  module.def(
      "time_encode",
      [](Host<const int64_t, 1> dt, Host<const double, 1> frequency, Host<const double, 1> phase, Host<Real, 2> cosine,
         Host<Real, 2> sine, int threads) {
        require(cosine.shape(0) == dt.shape(0) && cosine.shape(1) == frequency.shape(0), "cosine [n, width]");
        const bool with_sine = sine.shape(0) == cosine.shape(0);
        cpu::time_encode(dt.data(), dt.shape(0), frequency.data(), phase.data(), frequency.shape(0), cosine.data(),
                         with_sine ? sine.data() : nullptr, threads);
      },
      Release());
}

template <typename Real> void bind_gru(nb::module_ &module) {
  module.def(
      "gru_forward",
      [](Host<const Real, 2> given, Host<const Real, 2> kept, Host<const Real, 2> state, Host<Real, 2> out,
         Host<Real, 2> gates, int threads) {
        const auto n = state.shape(0), width = state.shape(1);
        require(given.shape(0) == n && kept.shape(0) == n && out.shape(0) == n && gates.shape(0) == n, "equal rows");
        require(given.shape(1) == 3 * width && kept.shape(1) == 3 * width && gates.shape(1) == 3 * width &&
                    out.shape(1) == width,
                "given, kept and gates are three times as wide as the state");
        cpu::gru_forward(given.data(), kept.data(), state.data(), n, width, out.data(), gates.data(), threads);
      },
      Release());
  module.def(
      "gru_backward",
      [](Host<const Real, 2> gradient, Host<const Real, 2> kept, Host<const Real, 2> state, Host<const Real, 2> gates,
         Host<Real, 2> grad_given, Host<Real, 2> grad_kept, int threads) {
        require(gradient.shape(0) == state.shape(0) && gradient.shape(1) == state.shape(1), "gradient and state alike");
        cpu::gru_backward(gradient.data(), kept.data(), state.data(), gates.data(), state.shape(0), state.shape(1),
                          grad_given.data(), grad_kept.data(), threads);
      },
      Release());
}

} // namespace

void bind_compute(nb::module_ &module) {
  bind_rows<Cpu>(module);
  bind_time_encode<float>(module);
  bind_time_encode<double>(module);
  bind_gru<float>(module);
  bind_gru<double>(module);
}

} // namespace hpcgnn
