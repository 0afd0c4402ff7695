// Bindings of the CUDA kernels: the shared operations on device arrays, executed on a stream, and those that need
// scratch.
#include "hpcgnn/cuda.h"
#include "bind/segment.h"
#include "bind/shared.h"
#include "hpcgnn/segment_cuda.h"

namespace hpcgnn {
namespace {

#if defined(HPCGNN_EMULATED)
using KernelDevice = nb::device::cpu;
#else
using KernelDevice = nb::device::cuda;
#endif

struct Cuda {
  using Device = KernelDevice;
  static constexpr auto sample_recent = &cuda::sample_recent;
  static constexpr auto sample_uniform = &cuda::sample_uniform;
  static constexpr auto decay_keep = &cuda::decay_keep;
  static constexpr auto temporal_reply = &cuda::temporal_reply;
  static constexpr auto count_neighbors = &cuda::count_neighbors;
  static constexpr auto sample_neighbors = &cuda::sample_neighbors;
  static constexpr auto random_integers = &cuda::random_integers;
  template <typename Real> static constexpr auto dropout_mask = &cuda::dropout_mask<Real>;
  static constexpr auto gather_rows = &cuda::gather_rows;
  static constexpr auto scatter_rows = &cuda::scatter_rows;
  template <typename Real> static constexpr auto segment_sum_rows = &cuda::segment_sum_rows<Real>;
  template <typename Real> static constexpr auto segment_sum = &cuda::segment_sum<Real>;
  template <typename Real> static constexpr auto segment_max = &cuda::segment_max<Real>;
  template <typename Real> static constexpr auto segment_max_backward = &cuda::segment_max_backward<Real>;
  template <typename Real> static constexpr auto edge_products = &cuda::edge_products<Real>;
  template <typename Real> static constexpr auto edge_attention = &cuda::edge_attention<Real>;
  template <typename Real> static constexpr auto edge_attention_backward = &cuda::edge_attention_backward<Real>;
};

template <typename T> using Vector = Array<T, 1, KernelDevice>;

cuda::Scratch scratch_of(const Vector<uint8_t> &array) { return {array.data(), static_cast<int64_t>(array.shape(0))}; }

template <typename T> using Matrix = Array<T, 2, KernelDevice>;
template <typename T> using Cube = Array<T, 3, KernelDevice>;

template <typename Real>
AttentionInput<Real> attention_input(const Cube<const Real> &query, const Matrix<const Real> &node,
                                     const Matrix<const int32_t> &slot, const Vector<const int32_t> &count,
                                     const Matrix<const Real> &edge, const Matrix<const int32_t> &edge_of,
                                     const Matrix<const int64_t> &dt, const Vector<const double> &frequency,
                                     const Vector<const double> &phase) {
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

template <typename Real> void bind_attention(nb::module_ &module) {
  module.def(
      "attention_forward",
      [](Cube<const Real> query, Matrix<const Real> node, Matrix<const int32_t> slot, Vector<const int32_t> count,
         Matrix<const Real> edge, Matrix<const int32_t> edge_of, Matrix<const int64_t> dt,
         Vector<const double> frequency, Vector<const double> phase, Cube<Real> aggregate, Cube<Real> weight,
         int64_t stream) {
        cuda::attention_forward(attention_input<Real>(query, node, slot, count, edge, edge_of, dt, frequency, phase),
                                aggregate.data(), weight.data(), stream);
      },
      Release());
  module.def(
      "attention_backward",
      [](Cube<const Real> query, Matrix<const Real> node, Matrix<const int32_t> slot, Vector<const int32_t> count,
         Matrix<const Real> edge, Matrix<const int32_t> edge_of, Matrix<const int64_t> dt,
         Vector<const double> frequency, Vector<const double> phase, Cube<const Real> weight, Cube<const Real> gradient,
         Vector<const int64_t> slot_indptr, Vector<const int64_t> slot_order, Cube<Real> grad_score,
         Cube<Real> grad_query, Matrix<Real> grad_node, Matrix<double> grad_phase, int64_t stream) {
        require(slot_indptr.shape(0) == node.shape(0) + 1, "slot_indptr [unique + 1]");
        const int64_t groups = (static_cast<int64_t>(query.shape(0)) + cuda::kPhaseRoots - 1) / cuda::kPhaseRoots;
        const bool with_phase = grad_phase.shape(1) > 0;
        require(!with_phase || static_cast<int64_t>(grad_phase.shape(0)) == groups, "grad_phase [groups, time width]");
        cuda::attention_backward(attention_input<Real>(query, node, slot, count, edge, edge_of, dt, frequency, phase),
                                 weight.data(), gradient.data(), slot_indptr.data(), slot_order.data(),
                                 grad_score.data(), grad_query.data(), grad_node.data(),
                                 with_phase ? grad_phase.data() : nullptr, stream);
      },
      Release());
}

void bind_relabel(nb::module_ &module) {
  module.def("unique_relabel_scratch_bytes", &cuda::unique_relabel_scratch_bytes);
  module.def(
      "unique_relabel",
      [](Vector<const int64_t> ids, Vector<int64_t> unique, Vector<int32_t> inverse, Vector<int64_t> count,
         Vector<uint8_t> scratch, int64_t stream) {
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0),
                "unique and inverse as long as ids");
        require(count.shape(0) == 1, "count [1]");
        cuda::unique_relabel(ids.data(), ids.shape(0), unique.data(), inverse.data(), count.data(), scratch_of(scratch),
                             stream);
      },
      Release());
  module.def("last_event_scratch_bytes", &cuda::last_event_scratch_bytes);
  module.def(
      "last_event",
      [](Vector<const int64_t> nodes, Vector<const int64_t> events, Vector<uint8_t> winner, Vector<uint8_t> scratch,
         int64_t stream) {
        require(nodes.shape(0) == events.shape(0) && nodes.shape(0) == winner.shape(0),
                "nodes, events and winner alike");
        cuda::last_event(nodes.data(), events.data(), nodes.shape(0), winner.data(), scratch_of(scratch), stream);
      },
      Release());
  module.def("transpose_index_scratch_bytes", &cuda::transpose_index_scratch_bytes);
  module.def(
      "transpose_index",
      [](Vector<const int32_t> index, Vector<int64_t> indptr, Vector<int64_t> order, Vector<uint8_t> scratch,
         int64_t stream) {
        require(indptr.shape(0) >= 1 && order.shape(0) == index.shape(0),
                "indptr [targets + 1], order as long as index");
        cuda::transpose_index(index.data(), index.shape(0), indptr.shape(0) - 1, indptr.data(), order.data(),
                              scratch_of(scratch), stream);
      },
      Release());
}

} // namespace

void bind_cuda(nb::module_ &module) {
  bind_samplers<Cuda>(module);
  bind_decay<Cuda>(module);
  bind_reply<Cuda>(module);
  bind_neighbors<Cuda>(module);
  bind_random<Cuda>(module);
  bind_rows<Cuda>(module);
  bind_segments<Cuda>(module);
  bind_relabel(module);
  bind_attention<float>(module);
  bind_attention<double>(module);
  module.attr("PHASE_ROOTS") = cuda::kPhaseRoots;
}

} // namespace hpcgnn
