// Bindings of temporal attention on CUDA.
#include "hpcgnn/attention.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real>
AttentionInput<Real> attention_input(const Array<const Real, 3> &query, const Array<const Real, 2> &node,
                                     const Array<const int32_t, 2> &slot, const Array<const int32_t, 1> &count,
                                     const Array<const Real, 2> &edge, const Array<const int32_t, 2> &edge_of,
                                     const Array<const int64_t, 2> &dt, const Array<const double, 1> &frequency,
                                     const Array<const double, 1> &phase) {
  const auto roots = query.shape(0), slots = slot.shape(1);
  require(slot.shape(0) == roots && count.shape(0) == roots && dt.shape(0) == roots && dt.shape(1) == slots,
          "query, slot, count and dt must have one row a root, slot and dt equal columns");
  require(edge.shape(1) == 0 || (edge_of.shape(0) == roots && edge_of.shape(1) == slots), "edge_of as large as slot");
  require(query.shape(2) == node.shape(1) + edge.shape(1) + frequency.shape(0) && phase.shape(0) == frequency.shape(0),
          "query width must be node + edge + time width");
  const auto narrow = [](size_t size) { return static_cast<int32_t>(size); };
  return {static_cast<int64_t>(roots),
          static_cast<int64_t>(node.shape(0)),
          narrow(slots),
          narrow(query.shape(1)),
          narrow(node.shape(1)),
          narrow(edge.shape(1)),
          narrow(frequency.shape(0)),
          query.data(),
          node.data(),
          slot.data(),
          count.data(),
          edge_of.data(),
          edge.data(),
          dt.data(),
          frequency.data(),
          phase.data()};
}

template <typename Real> void bind_kernels(nb::module_ &module) {
  module.def(
      "attention_forward",
      [](Array<const Real, 3> query, Array<const Real, 2> node, Array<const int32_t, 2> slot,
         Array<const int32_t, 1> count, Array<const Real, 2> edge, Array<const int32_t, 2> edge_of,
         Array<const int64_t, 2> dt, Array<const double, 1> frequency, Array<const double, 1> phase,
         Array<Real, 3> aggregate, Array<Real, 3> weight, int64_t stream) {
        attention_forward(attention_input<Real>(query, node, slot, count, edge, edge_of, dt, frequency, phase),
                          aggregate.data(), weight.data(), stream);
      },
      Release());
  module.def(
      "attention_backward",
      [](Array<const Real, 3> query, Array<const Real, 2> node, Array<const int32_t, 2> slot,
         Array<const int32_t, 1> count, Array<const Real, 2> edge, Array<const int32_t, 2> edge_of,
         Array<const int64_t, 2> dt, Array<const double, 1> frequency, Array<const double, 1> phase,
         Array<const Real, 3> weight, Array<const Real, 3> gradient, Array<const int64_t, 1> slot_indptr,
         Array<const int64_t, 1> slot_order, Array<Real, 3> grad_score, Array<Real, 3> grad_query,
         Array<Real, 2> grad_node, Array<double, 2> grad_phase, int64_t stream) {
        require(slot_indptr.shape(0) == node.shape(0) + 1, "slot_indptr [unique + 1]");
        const int64_t groups = (static_cast<int64_t>(query.shape(0)) + kPhaseRoots - 1) / kPhaseRoots;
        const bool with_phase = grad_phase.shape(1) > 0;
        require(!with_phase || static_cast<int64_t>(grad_phase.shape(0)) == groups, "grad_phase [groups, time width]");
        attention_backward(attention_input<Real>(query, node, slot, count, edge, edge_of, dt, frequency, phase),
                           weight.data(), gradient.data(), slot_indptr.data(), slot_order.data(), grad_score.data(),
                           grad_query.data(), grad_node.data(), with_phase ? grad_phase.data() : nullptr, stream);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(attention) {
  bind_kernels<float>(module);
  bind_kernels<double>(module);
  module.attr("PHASE_ROOTS") = kPhaseRoots;
}

} // namespace hpcgnn
