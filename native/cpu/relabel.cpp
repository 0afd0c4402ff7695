// Relabeling, winners and index transposes on the CPU: open addressing, one pass, no dependence on thread order.
#include "hpcgnn/relabel.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace hpcgnn {
namespace {

constexpr int64_t kAhead = 32;                // ids by which stamps and entries of tables are fetched ahead
constexpr size_t kMostKept = size_t(1) << 20; // entries of a table that stay in memory for the next call

struct Entry {
  int64_t key;
  uint32_t call; // the entry is empty unless it is of the current call
  int32_t value;
};

// The table of one call. The memory of a small one is kept from call to call and only grows, and a new call number
// empties it: a planning thread calls these operations once a step. That of a large one, of a whole epoch or graph, is
// given back.
class Table {
public:
  explicit Table(int64_t keys) : mask_(table_size(keys) - 1) {
    if (keys > INT32_MAX) {
      throw std::invalid_argument("relabeling takes fewer than 2^31 entries a call, got " + std::to_string(keys));
    }
    if (mask_ >= kMostKept) {
      large_.assign(mask_ + 1, Entry{0, 0, 0});
      entries_ = large_.data();
      call_ = 1;
      return;
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

  // Starts to load what find_or_add will read for the key.
  [[gnu::always_inline]] void fetch(int64_t key) const {
    __builtin_prefetch(entries_ + (mix64(static_cast<uint64_t>(key)) & mask_), 1);
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
  std::vector<Entry> large_;
  Entry *entries_;
  uint32_t call_;
};

} // namespace

int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse) {
  Table table(n);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    table.fetch(ids[std::min(i + kAhead, n - 1)]);
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
    table.fetch(nodes[std::min(i + kAhead, n - 1)]);
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

HugeArray::HugeArray(int64_t size) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t bytes = (std::max<size_t>(1, size * sizeof(uint32_t)) + kPage - 1) / kPage * kPage;
  void *memory = std::aligned_alloc(kPage, bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0, bytes);
  data_.reset(static_cast<uint32_t *>(memory));
}

void HugeArray::Free::operator()(uint32_t *data) const { std::free(data); }

Relabeler::Relabeler(int64_t num_nodes, bool dense) : num_nodes_(num_nodes) {
  if (num_nodes < 0 || (dense && num_nodes > INT32_MAX)) {
    throw std::invalid_argument("num_nodes must be at least 0, and below 2^31 with stamps; got " +
                                std::to_string(num_nodes));
  }
  if (dense) {
    stamps_ = std::make_unique<HugeArray>(num_nodes);
  }
  reserve(0);
}

void Relabeler::begin() {
  base_ += static_cast<uint32_t>(size_);
  size_ = 0;
  if (stamps_ && base_ > UINT32_MAX - static_cast<uint32_t>(num_nodes_)) {
    std::fill(stamps_->data(), stamps_->data() + num_nodes_, 0u);
    base_ = 1;
  }
  if (++round_ == 0) {
    std::fill(table_.begin(), table_.end(), Entry{0, 0, 0});
    round_ = 1;
  }
}

void Relabeler::reserve(int64_t unique) {
  unique = std::min(unique, num_nodes_);
  if (unique > INT32_MAX) {
    throw std::invalid_argument("relabeling takes fewer than 2^31 ids between two begins");
  }
  if (unique > capacity_ || !unique_) {
    capacity_ = std::min(num_nodes_, std::max(unique, 2 * capacity_));
    // One more: a stamped id is written behind the last one before it is known whether it is new.
    std::shared_ptr<int64_t[]> larger(new int64_t[capacity_ + 1]);
    std::copy(unique_.get(), unique_.get() + size_, larger.get());
    unique_ = std::move(larger);
  }
  if (!stamps_) {
    grow_table(unique);
  }
}

void Relabeler::grow_table(int64_t unique) {
  if (table_.size() >= table_size(unique)) {
    return;
  }
  table_.assign(table_size(unique), Entry{0, 0, 0});
  for (int64_t i = 0; i < size_; ++i) {
    find(unique_[i]) = {unique_[i], round_, static_cast<int32_t>(i)};
  }
}

// The key's entry, or the empty one where it belongs.
Relabeler::Entry &Relabeler::find(int64_t key) {
  const uint64_t mask = table_.size() - 1;
  uint64_t place = mix64(static_cast<uint64_t>(key)) & mask;
  while (table_[place].round == round_ && table_[place].key != key) {
    place = (place + 1) & mask;
  }
  return table_[place];
}

// Every id is written behind the last unique one, and counts if it is new: no branch to mispredict.
template <typename Id> int64_t Relabeler::add_dense(const Id *ids, int64_t n, int32_t *position) {
  uint32_t *stamps = stamps_->data();
  int64_t *unique = unique_.get();
  const uint32_t base = base_;
  const uint64_t limit = static_cast<uint64_t>(num_nodes_);
  uint32_t next = base + static_cast<uint32_t>(size_);
  for (int64_t i = 0; i < n; ++i) {
    __builtin_prefetch(stamps + ids[std::min(i + kAhead, n - 1)], 1);
    const int64_t id = ids[i];
    if (__builtin_expect(static_cast<uint64_t>(id) >= limit, 0)) {
      if (id >= 0) {
        size_ = next - base;
        return id;
      }
      position[i] = -1;
      continue;
    }
    const uint32_t stamp = stamps[id];
    const bool is_new = stamp < base;
    const uint32_t current = is_new ? next : stamp;
    stamps[id] = current;
    unique[next - base] = id;
    next += is_new;
    position[i] = static_cast<int32_t>(current - base);
  }
  size_ = next - base;
  return -1;
}

template <typename Id> int64_t Relabeler::add_hashed(const Id *ids, int64_t n, int32_t *position) {
  for (int64_t i = 0; i < n; ++i) {
    fetch(ids[std::min(i + kAhead, n - 1)]);
    const int64_t id = ids[i];
    if (id >= num_nodes_) {
      return id;
    }
    if (id < 0) {
      position[i] = -1;
      continue;
    }
    Entry &entry = find(id);
    if (entry.round != round_) {
      entry = {id, round_, static_cast<int32_t>(size_)};
      unique_[size_++] = id;
    }
    position[i] = entry.position;
  }
  return -1;
}

template <typename Id> int64_t Relabeler::add(const Id *ids, int64_t n, int32_t *position) {
  reserve(size_ + n);
  return stamps_ ? add_dense(ids, n, position) : add_hashed(ids, n, position);
}

template int64_t Relabeler::add<int32_t>(const int32_t *, int64_t, int32_t *);
template int64_t Relabeler::add<int64_t>(const int64_t *, int64_t, int32_t *);

} // namespace hpcgnn
