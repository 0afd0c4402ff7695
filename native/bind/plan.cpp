// CPU operations of planning: samplers, random numbers, relabelling.
#include "bind/shared.h"
#include "hpcgnn/cpu.h"

namespace hpcgnn {
namespace {

struct Cpu {
  using Device = nb::device::cpu;
  static constexpr auto sample_recent = &cpu::sample_recent;
  static constexpr auto sample_uniform = &cpu::sample_uniform;
  static constexpr auto decay_keep = &cpu::decay_keep;
  static constexpr auto temporal_reply = &cpu::temporal_reply;
  static constexpr auto count_neighbors = &cpu::count_neighbors;
  static constexpr auto sample_neighbors = &cpu::sample_neighbors;
  static constexpr auto random_integers = &cpu::random_integers;
  template <typename Real> static constexpr auto dropout_mask = &cpu::dropout_mask<Real>;
};

using I64 = Array<const int64_t, 1, nb::device::cpu>;
using Out64 = Array<int64_t, 1, nb::device::cpu>;

Blocks blocks_of(const I64 &start, const I64 &rank, const I64 &local) {
  require(start.shape(0) > 0 && start.shape(0) == rank.shape(0) && start.shape(0) == local.shape(0),
          "start, rank and local of at least one block");
  return {start.data(), rank.data(), local.data(), static_cast<int64_t>(start.shape(0))};
}

// Ranks index the counts.
Blocks checked_blocks(const I64 &start, const I64 &rank, const I64 &local, int64_t size) {
  const Blocks blocks = blocks_of(start, rank, local);
  for (int64_t block = 0; block < blocks.count; ++block) {
    require(0 <= blocks.rank[block] && blocks.rank[block] < size, "ranks of blocks must be below the length of counts");
  }
  return blocks;
}

void bind_owner(nb::module_ &module) {
  module.def(
      "locate",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Out64 owner, Out64 local) {
        require(owner.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0), "owner and local as long as ids");
        cpu::locate(ids.data(), ids.shape(0), blocks_of(start, rank, local_base), owner.data(), local.data());
      },
      Release());
  module.def(
      "locate_by_owner",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Out64 order, Out64 local, Out64 counts) {
        const int64_t size = counts.shape(0);
        require(order.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0), "order and local as long as ids");
        cpu::locate_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size,
                             order.data(), local.data(), counts.data());
      },
      Release());
  module.def(
      "unique_by_owner",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Out64 unique, Array<int32_t, 1, nb::device::cpu> inverse,
         Out64 local, Out64 counts) {
        const int64_t size = counts.shape(0);
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0),
                "unique, inverse and local as long as ids");
        return cpu::unique_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size,
                                    unique.data(), inverse.data(), local.data(), counts.data());
      },
      Release());
}

} // namespace

void bind_plan(nb::module_ &module) {
  bind_samplers<Cpu>(module);
  bind_decay<Cpu>(module);
  bind_neighbors<Cpu>(module);
  bind_random<Cpu>(module);
  bind_reply<Cpu>(module);
  bind_owner(module);
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
