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

// Places are 32-bit numbers.
void check_places(const I64 &ids) { require(ids.shape(0) < (size_t(1) << 31), "at most 2^31 - 1 ids in a call"); }

int64_t sum_of_counts(const I64 &counts) {
  int64_t total = 0;
  for (size_t i = 0; i < counts.shape(0); ++i) {
    require(counts.data()[i] >= 0, "counts must not be negative");
    total += counts.data()[i];
  }
  return total;
}

} // namespace

HPCGNN_BINDING(owner) {
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
        check_places(ids);
        locate_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size, order.data(),
                        local.data(), counts.data());
      },
      Release());
  module.def(
      "order_of_ranks",
      [](I64 ranks, int64_t size, Array<int64_t, 1> order) {
        require(order.shape(0) == ranks.shape(0), "order as long as ranks");
        for (size_t i = 0; i < ranks.shape(0); ++i) {
          require(0 <= ranks.data()[i] && ranks.data()[i] < size, "ranks must be below size");
        }
        order_of_ranks(ranks.data(), ranks.shape(0), size, order.data());
      },
      Release());
  module.def(
      "unique_by_owner",
      [](I64 ids, I64 start, I64 rank, I64 local_base, Array<int64_t, 1> unique, Array<int32_t, 1> inverse,
         Array<int64_t, 1> local, Array<int64_t, 1> counts) {
        const int64_t size = counts.shape(0);
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0) && local.shape(0) == ids.shape(0),
                "unique, inverse and local as long as ids");
        check_places(ids);
        return unique_by_owner(ids.data(), ids.shape(0), checked_blocks(start, rank, local_base, size), size,
                               unique.data(), inverse.data(), local.data(), counts.data());
      },
      Release());
  module.def(
      "gather_ranges",
      [](I64 values, I64 begin, I64 length, Array<int64_t, 1> out) {
        require(begin.shape(0) == length.shape(0), "as many lengths as beginnings");
        require(sum_of_counts(length) == static_cast<int64_t>(out.shape(0)), "lengths must add up to out");
        for (size_t i = 0; i < begin.shape(0); ++i) {
          const int64_t room = static_cast<int64_t>(values.shape(0)) - length.data()[i];
          require(0 <= begin.data()[i] && begin.data()[i] <= room, "ranges must lie within the values");
        }
        gather_ranges(values.data(), begin.data(), length.data(), begin.shape(0), out.data());
      },
      Release());
}

} // namespace hpcgnn
