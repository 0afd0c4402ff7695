// CPU operations of execution: rows, time encoding, temporal attention.
#include "bind_shared.h"
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

template <typename Real> struct AttentionArrays {
  Host<const Real, 3> query;
  Host<const Real, 2> node;
  Host<const int32_t, 2> slot;
  Host<const int32_t, 1> count;
  Host<const Real, 2> edge; // width 0 without edge features
  Host<const int32_t, 2> edge_of;
  Host<const int64_t, 2> dt;
  Host<const double, 1> frequency, phase;

  cpu::AttentionInput<Real> checked() const {
    const auto roots = query.shape(0);
    const auto width = node.shape(1) + edge.shape(1) + frequency.shape(0);
    require(slot.shape(0) == roots && count.shape(0) == roots && dt.shape(0) == roots && edge_of.shape(0) == roots,
            "query, slot, count, edge_of and dt must have one row a root");
    require(query.shape(2) == width && phase.shape(0) == frequency.shape(0),
            "query width must be node + edge + time width");
    require(slot.shape(1) == dt.shape(1) && (edge.shape(1) == 0 || edge_of.shape(1) == slot.shape(1)),
            "slots must agree");
    return {static_cast<int64_t>(roots),
            static_cast<int64_t>(node.shape(0)),
            static_cast<int32_t>(slot.shape(1)),
            static_cast<int32_t>(query.shape(1)),
            static_cast<int32_t>(node.shape(1)),
            static_cast<int32_t>(edge.shape(1)),
            static_cast<int32_t>(frequency.shape(0)),
            query.data(),
            node.data(),
            slot.data(),
            count.data(),
            edge.data(),
            edge_of.data(),
            dt.data(),
            frequency.data(),
            phase.data()};
  }
};

template <typename Real> void bind_attention(nb::module_ &module) {
  module.def(
      "attention_forward",
      [](Host<const Real, 3> query, Host<const Real, 2> node, Host<const int32_t, 2> slot, Host<const int32_t, 1> count,
         Host<const Real, 2> edge, Host<const int32_t, 2> edge_of, Host<const int64_t, 2> dt,
         Host<const double, 1> frequency, Host<const double, 1> phase, Host<Real, 3> aggregate, Host<Real, 3> weight,
         int threads) {
        const AttentionArrays<Real> arrays{query, node, slot, count, edge, edge_of, dt, frequency, phase};
        cpu::attention_forward(arrays.checked(), aggregate.data(), weight.data(), threads);
      },
      Release());
  module.def(
      "attention_backward",
      [](Host<const Real, 3> query, Host<const Real, 2> node, Host<const int32_t, 2> slot, Host<const int32_t, 1> count,
         Host<const Real, 2> edge, Host<const int32_t, 2> edge_of, Host<const int64_t, 2> dt,
         Host<const double, 1> frequency, Host<const double, 1> phase, Host<const Real, 3> weight,
         Host<const Real, 3> grad_aggregate, Host<const int64_t, 1> slot_indptr, Host<const int64_t, 1> slot_order,
         Host<Real, 3> score_gradient, Host<Real, 3> grad_query, Host<Real, 2> grad_node, Host<double, 1> grad_phase,
         int threads) {
        const AttentionArrays<Real> arrays{query, node, slot, count, edge, edge_of, dt, frequency, phase};
        require(slot_indptr.shape(0) == node.shape(0) + 1, "slot_indptr [unique + 1]");
        cpu::attention_backward(arrays.checked(), weight.data(), grad_aggregate.data(), slot_indptr.data(),
                                slot_order.data(), score_gradient.data(), grad_query.data(), grad_node.data(),
                                grad_phase.shape(0) ? grad_phase.data() : nullptr, threads);
      },
      Release());
}

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
  bind_attention<float>(module);
  bind_attention<double>(module);
}

} // namespace hpcgnn
