// CPU operations of planning: samplers, random numbers, relabelling.
#include "bind_shared.h"
#include "hpcgnn/cpu.h"

namespace hpcgnn {
namespace {

struct Cpu {
  using Device = nb::device::cpu;
  static constexpr auto sample_recent = &cpu::sample_recent;
  static constexpr auto sample_uniform = &cpu::sample_uniform;
  static constexpr auto decay_keep = &cpu::decay_keep;
  static constexpr auto random_integers = &cpu::random_integers;
  template <typename Real> static constexpr auto dropout_mask = &cpu::dropout_mask<Real>;
};

using I64 = Array<const int64_t, 1, nb::device::cpu>;

} // namespace

void bind_plan(nb::module_ &module) {
  bind_samplers<Cpu>(module);
  bind_decay<Cpu>(module);
  bind_random<Cpu>(module);
  module.def(
      "unique_relabel",
      [](I64 ids, Array<int64_t, 1, nb::device::cpu> unique, Array<int32_t, 1, nb::device::cpu> inverse) {
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0),
                "unique and inverse as long as ids");
        return cpu::unique_relabel(ids.data(), ids.shape(0), unique.data(), inverse.data());
      },
      Release());
  module.def(
      "last_event",
      [](I64 nodes, I64 events, Array<uint8_t, 1, nb::device::cpu> winner) {
        require(nodes.shape(0) == events.shape(0) && nodes.shape(0) == winner.shape(0),
                "nodes, events and winner alike");
        cpu::last_event(nodes.data(), events.data(), nodes.shape(0), winner.data());
      },
      Release());
  module.def(
      "transpose_index",
      [](Array<const int32_t, 1, nb::device::cpu> index, Array<int64_t, 1, nb::device::cpu> indptr,
         Array<int64_t, 1, nb::device::cpu> order) {
        require(indptr.shape(0) >= 1 && order.shape(0) == index.shape(0),
                "indptr [targets + 1], order as long as index");
        cpu::transpose_index(index.data(), index.shape(0), indptr.shape(0) - 1, indptr.data(), order.data());
      },
      Release());
}

} // namespace hpcgnn
