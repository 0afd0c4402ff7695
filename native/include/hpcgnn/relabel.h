// Element functions of parallel relabeling, winners and index transposes: what one thread does for entry i in each
// pass. A pass begins when the one before it is complete; within a pass, entries may run in any order and at the same
// time.
//
//   unique_relabel   insert_entry | rank[i] = is_first, then its exclusive prefix sum | relabel_entry
//   last_event       insert_newest | elect_newest | winner[i] = is_first
//   transpose_index  transpose_key, then a stable sort of the positions by key | first_of_target for every target
//
// Negative ids are padding: they enter no table and are never first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hpcgnn/base/atomics.h"
#include "hpcgnn/base/execution.h"
#include "hpcgnn/base/hash.h"

namespace hpcgnn {

// Open addressing with linear probing; table_size(n) slots.
struct PlaceTable {
  int64_t *key;    // [slots], -1 where empty
  uint32_t *first; // [slots], first position of the key, 2^32 - 1 at the start
  uint64_t mask;   // slots - 1
};

// The entries and where each of them is in the table.
struct PlacedEntries {
  const int64_t *id; // [n]
  uint32_t *place;   // [n], undefined where id is negative
};

// The key's place, claimed for it if nobody has done so.
HPCGNN_HD uint32_t claim_place(const PlaceTable &table, int64_t key) {
  uint64_t place = mix64(static_cast<uint64_t>(key)) & table.mask;
  for (;;) {
    int64_t present = atomic_load(table.key + place);
    if (present == -1) {
      present = atomic_exchange_if(table.key + place, -1, key);
    }
    if (present == -1 || present == key) {
      return static_cast<uint32_t>(place);
    }
    place = (place + 1) & table.mask;
  }
}

HPCGNN_HD bool is_first(const PlaceTable &table, const PlacedEntries &entries, int64_t i) {
  return entries.id[i] >= 0 && table.first[entries.place[i]] == static_cast<uint32_t>(i);
}

HPCGNN_HD void insert_entry(const PlaceTable &table, const PlacedEntries &entries, int64_t i) {
  if (entries.id[i] >= 0) {
    entries.place[i] = claim_place(table, entries.id[i]);
    atomic_lower(table.first + entries.place[i], static_cast<uint32_t>(i));
  }
}

// rank [n]: number of first entries before each position.
HPCGNN_HD void relabel_entry(const PlaceTable &table, const PlacedEntries &entries, const int32_t *rank, int64_t n,
                             int64_t i, int64_t *unique, int32_t *inverse, int64_t *count) {
  const bool first = is_first(table, entries, i);
  if (first) {
    unique[rank[i]] = entries.id[i];
  }
  inverse[i] = entries.id[i] < 0 ? -1 : rank[table.first[entries.place[i]]];
  if (i == n - 1) {
    *count = rank[i] + (first ? 1 : 0);
  }
}

// Order-preserving map to unsigned: 0 is the smallest, so that a zeroed table is below every event.
HPCGNN_HD uint64_t ordered_bits(int64_t event) { return static_cast<uint64_t>(event) ^ (1ull << 63); }

// newest [slots]: the largest ordered_bits of a key's events, 0 at the start.
HPCGNN_HD void insert_newest(const PlaceTable &table, const PlacedEntries &entries, const int64_t *events,
                             uint64_t *newest, int64_t i) {
  if (entries.id[i] >= 0) {
    entries.place[i] = claim_place(table, entries.id[i]);
    atomic_raise(newest + entries.place[i], ordered_bits(events[i]));
  }
}

HPCGNN_HD void elect_newest(const PlaceTable &table, const PlacedEntries &entries, const int64_t *events,
                            const uint64_t *newest, int64_t i) {
  if (entries.id[i] >= 0 && newest[entries.place[i]] == ordered_bits(events[i])) {
    atomic_lower(table.first + entries.place[i], static_cast<uint32_t>(i));
  }
}

// Entries that point nowhere sort behind all targets.
HPCGNN_HD uint32_t transpose_key(int32_t index, int64_t targets) {
  return index < 0 ? static_cast<uint32_t>(targets) : static_cast<uint32_t>(index);
}

// Number of low bits in which the keys 0 .. targets differ (at least 1).
HPCGNN_HD int transpose_key_bits(int64_t targets) {
  int bits = 1;
  while ((targets >> bits) != 0) {
    ++bits;
  }
  return bits;
}

// First position in the sorted keys [n] that is not below the target.
HPCGNN_HD int64_t first_of_target(const uint32_t *keys, int64_t n, int64_t target) {
  int64_t begin = 0, end = n;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (static_cast<int64_t>(keys[middle]) < target) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// On the CPU. unique [<= n] in order of first occurrence, inverse [n]; returns the number of unique ids.
int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse);
// winner [n]: 1 for the first entry among those of its node with the largest event; negative nodes never win.
void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner);
// For every target the positions that point at it, in order. indptr [targets + 1], order [entries >= 0].
void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order);

// Device memory for intermediate results, the caller's; its content before and after a call means nothing.
struct DeviceScratch {
  uint8_t *data;
  int64_t bytes;
};

// The same on CUDA, with fewer than 2^31 entries and a scratch of at least so many bytes. The sizes of unique_relabel
// and transpose_index are asked of the current device.
int64_t unique_relabel_scratch_bytes(int64_t n);
int64_t last_event_scratch_bytes(int64_t n);
int64_t transpose_index_scratch_bytes(int64_t n, int64_t targets);

// unique [n], of which count [1] are written.
void unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse, int64_t *count,
                    DeviceScratch scratch, Stream stream);
void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner, DeviceScratch scratch,
                Stream stream);
// order [n]: entries that point nowhere last.
void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order,
                     DeviceScratch scratch, Stream stream);

// Memory of a Relabeler's table, in huge pages where the system grants them; all zero at first.
class HugeArray {
public:
  explicit HugeArray(int64_t size);
  uint32_t *data() const { return data_.get(); }

private:
  struct Free {
    void operator()(uint32_t *data) const;
  };
  std::unique_ptr<uint32_t, Free> data_;
};

// Positions of ids among the unique ones so far, over several calls, in order of first occurrence, on the CPU. Dense: a
// stamp for every possible id. Else open addressing, which grows with the number of unique ids. For one thread at a
// time.
class Relabeler {
public:
  Relabeler(int64_t num_nodes, bool dense);

  int64_t num_nodes() const { return num_nodes_; }
  int64_t size() const { return size_; }
  // The unique ids so far [size]; the memory outlives growth for those who share it.
  const std::shared_ptr<int64_t[]> &unique() const { return unique_; }

  // Forgets all ids.
  void begin();
  // Starts to load what add will read for the id. Always inline: GCC drops calls of functions that do nothing else.
  [[gnu::always_inline]] void fetch(int64_t id) const {
    if (stamps_) {
      __builtin_prefetch(stamps_->data() + id, 1);
    } else {
      __builtin_prefetch(table_.data() + (mix64(static_cast<uint64_t>(id)) & (table_.size() - 1)), 1);
    }
  }
  // Makes room for so many unique ids; add does it by itself.
  void reserve(int64_t unique);
  // position [n] of every id; a negative id gets -1. `position` may overlap with ids if it does not begin behind them.
  // Returns the first id that is not below num_nodes, where it stops, else -1.
  template <typename Id> int64_t add(const Id *ids, int64_t n, int32_t *position);

private:
  struct Entry {
    int64_t key;
    uint32_t round; // the entry is empty unless it is of the current round
    int32_t position;
  };

  template <typename Id> int64_t add_dense(const Id *ids, int64_t n, int32_t *position);
  template <typename Id> int64_t add_hashed(const Id *ids, int64_t n, int32_t *position);
  Entry &find(int64_t key);
  void grow_table(int64_t unique);

  int64_t num_nodes_, size_ = 0, capacity_ = 0;
  std::shared_ptr<int64_t[]> unique_;
  std::unique_ptr<HugeArray> stamps_; // [num_nodes]: base_ + position, of an earlier round where below base_
  uint32_t base_ = 1, round_ = 1;
  std::vector<Entry> table_;
};

} // namespace hpcgnn
