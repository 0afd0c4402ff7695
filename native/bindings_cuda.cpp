// The submodule hpcgnn._native.cuda: the shared operations on device arrays, executed on a stream, and those that need
// scratch.
#include "bind_shared.h"
#include "hpcgnn/cuda.h"

namespace hpcgnn {
namespace {

struct Cuda {
  using Device = nb::device::cuda;
  static constexpr auto sample_recent = &cuda::sample_recent;
  static constexpr auto sample_uniform = &cuda::sample_uniform;
  static constexpr auto decay_keep = &cuda::decay_keep;
  static constexpr auto random_integers = &cuda::random_integers;
  template <typename Real> static constexpr auto dropout_mask = &cuda::dropout_mask<Real>;
  static constexpr auto gather_rows = &cuda::gather_rows;
  static constexpr auto scatter_rows = &cuda::scatter_rows;
  template <typename Real> static constexpr auto segment_sum_rows = &cuda::segment_sum_rows<Real>;
};

template <typename T> using Vector = Array<T, 1, nb::device::cuda>;

cuda::Scratch scratch_of(const Vector<uint8_t> &array) { return {array.data(), static_cast<int64_t>(array.shape(0))}; }

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
  bind_random<Cuda>(module);
  bind_rows<Cuda>(module);
  bind_relabel(module);
}

} // namespace hpcgnn
