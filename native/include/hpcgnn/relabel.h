// Element functions of parallel relabelling, winners and index transposes: what one thread does for entry i in each
// pass. A pass begins when the one before it is complete; within a pass, entries may run in any order and at the same
// time.
//
//   unique_relabel   insert_entry | rank[i] = is_first, then its exclusive prefix sum | relabel_entry
//   last_event       insert_newest | elect_newest | winner[i] = is_first
//   transpose_index  transpose_key, then a stable sort of the positions by key | first_of_target for every target
//
// Negative ids are padding: they enter no table and are never first.
#pragma once

#include "hpcgnn/base/atomics.h"
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
    int64_t found = atomic_load(table.key + place);
    if (found == -1) {
      found = atomic_exchange_if(table.key + place, -1, key);
    }
    if (found == -1 || found == key) {
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

} // namespace hpcgnn
