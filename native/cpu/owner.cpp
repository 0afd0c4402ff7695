// Owners and local rows of ids on the CPU, and ids in order of their owners (stable counting sorts).
#include "hpcgnn/owner.h"

#include <algorithm>
#include <vector>

#include "hpcgnn/relabel.h"

namespace hpcgnn {
namespace {

constexpr int64_t kMostKept = int64_t(1) << 20; // ids of a call whose buffers stay in memory for the next one

struct Buffers {
  std::vector<int64_t> unique, owner, local, cursor;
  std::vector<int32_t> place;

  void grow(int64_t n) {
    for (std::vector<int64_t> *buffer : {&unique, &owner, &local}) {
      buffer->resize(std::max<size_t>(buffer->size(), n));
    }
    place.resize(std::max<size_t>(place.size(), n));
  }
};

// Kept from call to call and only grown, or the caller's own for many ids, like the tables of relabeling.
Buffers &buffers_of(int64_t n, Buffers &large) {
  thread_local Buffers kept;
  Buffers &buffers = n > kMostKept ? large : kept;
  buffers.grow(n);
  return buffers;
}

// place [n] of every entry in the stable order by owner; counts [size] entries of each owner.
void sort_places(const int64_t *owner, int64_t n, int64_t size, std::vector<int64_t> &cursor, int64_t *counts,
                 int32_t *place) {
  std::fill(counts, counts + size, static_cast<int64_t>(0));
  for (int64_t i = 0; i < n; ++i) {
    ++counts[owner[i]];
  }
  cursor.assign(size, 0);
  for (int64_t rank = 1; rank < size; ++rank) {
    cursor[rank] = cursor[rank - 1] + counts[rank - 1];
  }
  for (int64_t i = 0; i < n; ++i) {
    place[i] = static_cast<int32_t>(cursor[owner[i]]++);
  }
}

} // namespace

void locate(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t *owner, int64_t *local) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = block_of(blocks, ids[i]);
    owner[i] = blocks.rank[block];
    local[i] = ids[i] - blocks.start[block] + blocks.local[block];
  }
}

void locate_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *order, int64_t *local,
                     int64_t *counts) {
  Buffers large;
  Buffers &own = buffers_of(n, large);
  locate(ids, n, blocks, own.owner.data(), own.local.data());
  sort_places(own.owner.data(), n, size, own.cursor, counts, own.place.data());
  for (int64_t i = 0; i < n; ++i) {
    order[own.place[i]] = i;
    local[own.place[i]] = own.local[i];
  }
}

void order_of_ranks(const int64_t *ranks, int64_t n, int64_t size, int64_t *order) {
  std::vector<int64_t> cursor(size + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    ++cursor[ranks[i] + 1];
  }
  for (int64_t rank = 0; rank < size; ++rank) {
    cursor[rank + 1] += cursor[rank];
  }
  for (int64_t i = 0; i < n; ++i) {
    order[cursor[ranks[i]]++] = i;
  }
}

int64_t unique_by_owner(const int64_t *ids, int64_t n, const Blocks &blocks, int64_t size, int64_t *unique,
                        int32_t *inverse, int64_t *local, int64_t *counts) {
  Buffers large;
  Buffers &own = buffers_of(n, large);
  const int64_t num_unique = unique_relabel(ids, n, own.unique.data(), inverse);
  locate(own.unique.data(), num_unique, blocks, own.owner.data(), own.local.data());
  sort_places(own.owner.data(), num_unique, size, own.cursor, counts, own.place.data());
  for (int64_t i = 0; i < num_unique; ++i) {
    unique[own.place[i]] = own.unique[i];
    local[own.place[i]] = own.local[i];
  }
  for (int64_t i = 0; i < n; ++i) {
    inverse[i] = inverse[i] < 0 ? -1 : own.place[inverse[i]];
  }
  return num_unique;
}

void gather_ranges(const int64_t *values, const int64_t *begin, const int64_t *length, int64_t n, int64_t *out) {
  for (int64_t i = 0; i < n; ++i) {
    out = std::copy_n(values + begin[i], length[i], out);
  }
}

} // namespace hpcgnn
