// Positions of ids among the unique ones so far, over several calls, in order of first occurrence. CPU only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace hpcgnn::cpu {

// Memory of a table, in huge pages where the system grants them; all zero at first.
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

// Dense: a stamp for every possible id. Else open addressing, which grows with the number of unique ids. For one thread
// at a time.
class Relabeler {
public:
  Relabeler(int64_t num_nodes, bool dense);

  int64_t num_nodes() const { return num_nodes_; }
  int64_t size() const { return size_; }
  // The unique ids so far [size]; the memory outlives growth for those who share it.
  const std::shared_ptr<int64_t[]> &unique() const { return unique_; }

  // Forgets all ids.
  void begin();
  // Starts to load what add will read for the id.
  void fetch(int64_t id) const {
    if (stamps_) {
      __builtin_prefetch(stamps_->data() + id, 1);
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

} // namespace hpcgnn::cpu
