// Bindings of owners and local rows of ids.
#include "hpcgnn/owner.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

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

} // namespace

void bind_owner(nb::module_ &module) {
  module.def(
      "locate",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Array<int64_t, 1> owner, Array<int64_t, 1> local) {
        require(owner.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0), "owner and local as long as ids");
        locate(ids.data(), ids.shape(0), blocks_of(start, rank, local_base), owner.data(), local.data());
      },
      Release());
  module.def(
      "locate_by_owner",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Array<int64_t, 1> order, Array<int64_t, 1> local,
         Array<int64_t, 1> counts) {
        const int64_t size = counts.shape(0);
        require(order.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0), "order and local as long as ids");
        locate_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size, order.data(),
                        local.data(), counts.data());
      },
      Release());
  module.def(
      "unique_by_owner",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Array<int64_t, 1> unique, Array<int32_t, 1> inverse,
         Array<int64_t, 1> local, Array<int64_t, 1> counts) {
        const int64_t size = counts.shape(0);
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0),
                "unique, inverse and local as long as ids");
        return unique_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size,
                               unique.data(), inverse.data(), local.data(), counts.data());
      },
      Release());
}

} // namespace hpcgnn
