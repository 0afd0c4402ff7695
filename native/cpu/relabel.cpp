// Relabelling, winners and index transposes on the CPU: open addressing, one pass, no dependence on thread order.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "hpcgnn/base/hash.h"
#include "hpcgnn/cpu.h"

namespace hpcgnn::cpu {
namespace {

struct Entry {
  int64_t key;
  uint32_t call; // the entry is empty unless it is of the current call
  int32_t value;
};

// The table of one call. Its memory is kept from call to call and only grows, and a new call number empties it: a
// planning thread calls these operations once a step.
class Table {
public:
  explicit Table(int64_t keys) : mask_(table_size(keys) - 1) {
    if (keys > INT32_MAX) {
      throw std::invalid_argument("relabelling takes fewer than 2^31 entries a call, got " + std::to_string(keys));
    }
    thread_local std::vector<Entry> memory;
    thread_local uint32_t calls = 0;
    if (memory.size() <= mask_ || ++calls == 0) {
      memory.assign(std::max<size_t>(memory.size(), mask_ + 1), Entry{0, 0, 0});
      calls = 1;
    }
    entries_ = memory.data();
    call_ = calls;
  }

  // The key's entry; where there is none yet, a new one with this value.
  Entry &find_or_add(int64_t key, int64_t value) {
    uint64_t place = mix64(static_cast<uint64_t>(key)) & mask_;
    while (entries_[place].call == call_ && entries_[place].key != key) {
      place = (place + 1) & mask_;
    }
    if (entries_[place].call != call_) {
      entries_[place] = {key, call_, static_cast<int32_t>(value)};
    }
    return entries_[place];
  }

private:
  uint64_t mask_;
  Entry *entries_;
  uint32_t call_;
};

} // namespace

int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse) {
  Table table(n);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0) {
      inverse[i] = -1;
      continue;
    }
    inverse[i] = table.find_or_add(ids[i], count).value;
    if (inverse[i] == count) {
      unique[count++] = ids[i];
    }
  }
  return count;
}

void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner) {
  Table table(n);
  std::fill(winner, winner + n, static_cast<uint8_t>(0));
  for (int64_t i = 0; i < n; ++i) {
    if (nodes[i] < 0) {
      continue;
    }
    Entry &entry = table.find_or_add(nodes[i], i);
    if (entry.value == i) {
      winner[i] = 1;
    } else if (events[i] > events[entry.value]) {
      winner[entry.value] = 0;
      winner[i] = 1;
      entry.value = static_cast<int32_t>(i);
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
