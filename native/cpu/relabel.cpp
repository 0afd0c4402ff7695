// Relabelling, winners and index transposes on the CPU: open addressing, one pass, no dependence on thread order.
#include <algorithm>

#include "hpcgnn/cpu.h"
#include "hpcgnn/hash.h"

namespace hpcgnn::cpu {
namespace {

struct Entry {
  int64_t key;
  int64_t value;
};

// Finds the key's place, or the empty place (key -1) where it belongs.
Entry &find(std::vector<Entry> &table, int64_t key) {
  const uint64_t mask = table.size() - 1;
  uint64_t place = mix64(static_cast<uint64_t>(key)) & mask;
  while (table[place].key != -1 && table[place].key != key) {
    place = (place + 1) & mask;
  }
  return table[place];
}

// Tables are kept from call to call and only grow: a planning thread calls these operations once a step.
std::vector<Entry> &cleared_table(int64_t keys) {
  thread_local std::vector<Entry> table;
  const uint64_t size = table_size(keys);
  table.assign(size, Entry{-1, 0});
  return table;
}

} // namespace

int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse) {
  std::vector<Entry> &table = cleared_table(n);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0) {
      inverse[i] = -1;
      continue;
    }
    Entry &entry = find(table, ids[i]);
    if (entry.key == -1) {
      entry = Entry{ids[i], count};
      unique[count++] = ids[i];
    }
    inverse[i] = static_cast<int32_t>(entry.value);
  }
  return count;
}

void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner) {
  std::vector<Entry> &table = cleared_table(n);
  for (int64_t i = 0; i < n; ++i) {
    Entry &entry = find(table, nodes[i]);
    if (entry.key == -1 || events[i] > events[entry.value]) {
      entry = Entry{nodes[i], i};
    }
  }
  std::fill(winner, winner + n, static_cast<uint8_t>(0));
  for (const Entry &entry : table) {
    if (entry.key != -1) {
      winner[entry.value] = 1;
    }
  }
}

void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order) {
  std::fill(indptr, indptr + targets + 1, static_cast<int64_t>(0));
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] >= 0) {
      ++indptr[index[i] + 1];
    }
  }
  for (int64_t target = 0; target < targets; ++target) {
    indptr[target + 1] += indptr[target];
  }
  // indptr[t] serves as the write cursor of target t and ends up at the start of t + 1; shifted back below.
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] >= 0) {
      order[indptr[index[i]]++] = i;
    }
  }
  for (int64_t target = targets; target > 0; --target) {
    indptr[target] = indptr[target - 1];
  }
  indptr[0] = 0;
}

} // namespace hpcgnn::cpu
