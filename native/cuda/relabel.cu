// Relabeling, winners and index transposes on CUDA: the passes of hpcgnn/relabel.h, one thread an entry; prefix sum
// and stable radix sort are CUB's. All intermediate arrays lie in the caller's scratch.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "cuda/launch.h"
#include "hpcgnn/relabel.h"

namespace hpcgnn {
namespace {

// Takes arrays one after another from the scratch; without memory it only counts the bytes.
class Carver {
public:
  explicit Carver(uint8_t *data) : data_(data) {}

  template <typename T> T *take(uint64_t count) {
    constexpr uint64_t kAlignment = 256;
    const uint64_t begin = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = begin + count * sizeof(T);
    return data_ == nullptr ? nullptr : reinterpret_cast<T *>(data_ + begin);
  }

  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

private:
  uint8_t *data_;
  uint64_t bytes_ = 0;
};

struct Library { // CUB's own scratch
  uint8_t *data;
  size_t bytes;
};

Library take_library(Carver &carver, size_t bytes) { return {carver.take<uint8_t>(bytes), bytes}; }

int checked_entries(int64_t n) {
  if (n < 0 || n > INT32_MAX) {
    throw std::invalid_argument("CUDA relabeling takes fewer than 2^31 entries a call, got " + std::to_string(n));
  }
  return static_cast<int>(n);
}

void require_scratch(int64_t needed, const DeviceScratch &scratch) {
  if (scratch.bytes < needed) {
    throw std::invalid_argument("scratch has " + std::to_string(scratch.bytes) + " bytes, needs " +
                                std::to_string(needed));
  }
}

PlaceTable take_table(Carver &carver, int64_t n) {
  const uint64_t slots = table_size(checked_entries(n));
  return {carver.take<int64_t>(slots), carver.take<uint32_t>(slots), slots - 1};
}

void clear(const PlaceTable &table, Stream stream) {
  const uint64_t slots = table.mask + 1;
  check(cudaMemsetAsync(table.key, 0xFF, slots * sizeof(int64_t), handle_of(stream)));
  check(cudaMemsetAsync(table.first, 0xFF, slots * sizeof(uint32_t), handle_of(stream)));
}

// ----------------------------------------------------------------------------------------------------------
// unique_relabel

__global__ void insert_kernel(PlaceTable table, PlacedEntries entries, int64_t n) {
  const int64_t i = entry_index();
  if (i < n) {
    insert_entry(table, entries, i);
  }
}

template <typename Flag> __global__ void first_kernel(PlaceTable table, PlacedEntries entries, int64_t n, Flag *flag) {
  const int64_t i = entry_index();
  if (i < n) {
    flag[i] = is_first(table, entries, i) ? 1 : 0;
  }
}

__global__ void relabel_kernel(PlaceTable table, PlacedEntries entries, const int32_t *rank, int64_t n, int64_t *unique,
                               int32_t *inverse, int64_t *count) {
  const int64_t i = entry_index();
  if (i < n) {
    relabel_entry(table, entries, rank, n, i, unique, inverse, count);
  }
}

// In place: with no scratch only sets `bytes`.
void prefix_sum(void *scratch, size_t &bytes, int32_t *values, int n, Stream stream) {
  check(cub::DeviceScan::ExclusiveSum(scratch, bytes, values, values, n, handle_of(stream)));
}

struct RelabelScratch {
  PlaceTable table;
  uint32_t *place;
  int32_t *rank;
  Library scan;
};

RelabelScratch take_relabel(Carver &carver, int64_t n) {
  size_t scan_bytes = 0;
  prefix_sum(nullptr, scan_bytes, nullptr, checked_entries(n), Stream(0));
  return {take_table(carver, n), carver.take<uint32_t>(n), carver.take<int32_t>(n), take_library(carver, scan_bytes)};
}

// --------------------------------------------------------------------------------------------------------------
// last_event

__global__ void newest_kernel(PlaceTable table, PlacedEntries entries, const int64_t *events, int64_t n,
                              uint64_t *newest) {
  const int64_t i = entry_index();
  if (i < n) {
    insert_newest(table, entries, events, newest, i);
  }
}

__global__ void elect_kernel(PlaceTable table, PlacedEntries entries, const int64_t *events, int64_t n,
                             const uint64_t *newest) {
  const int64_t i = entry_index();
  if (i < n) {
    elect_newest(table, entries, events, newest, i);
  }
}

struct WinnerScratch {
  PlaceTable table;
  uint64_t *newest;
  uint32_t *place;
};

WinnerScratch take_winner(Carver &carver, int64_t n) {
  const PlaceTable table = take_table(carver, n);
  return {table, carver.take<uint64_t>(table.mask + 1), carver.take<uint32_t>(n)};
}

// ---------------------------------------------------------------------------------------------------------
// transpose_index

__global__ void key_kernel(const int32_t *index, int64_t n, int64_t targets, uint32_t *key, int64_t *position) {
  const int64_t i = entry_index();
  if (i < n) {
    key[i] = transpose_key(index[i], targets);
    position[i] = i;
  }
}

__global__ void indptr_kernel(const uint32_t *sorted_key, int64_t n, int64_t targets, int64_t *indptr) {
  const int64_t target = entry_index();
  if (target <= targets) {
    indptr[target] = first_of_target(sorted_key, n, target);
  }
}

struct TransposeScratch {
  uint32_t *key, *sorted_key;
  int64_t *position;
  Library sort;
};

// With no scratch only sets `bytes`.
void sort_positions(void *scratch, size_t &bytes, const TransposeScratch &arrays, int64_t *order, int n,
                    int64_t targets, Stream stream) {
  check(cub::DeviceRadixSort::SortPairs(scratch, bytes, static_cast<const uint32_t *>(arrays.key), arrays.sorted_key,
                                        static_cast<const int64_t *>(arrays.position), order, n, 0,
                                        transpose_key_bits(targets), handle_of(stream)));
}

TransposeScratch take_transpose(Carver &carver, int64_t n, int64_t targets) {
  size_t sort_bytes = 0;
  sort_positions(nullptr, sort_bytes, TransposeScratch{}, nullptr, checked_entries(n), targets, Stream(0));
  return {carver.take<uint32_t>(n), carver.take<uint32_t>(n), carver.take<int64_t>(n),
          take_library(carver, sort_bytes)};
}

} // namespace

int64_t unique_relabel_scratch_bytes(int64_t n) {
  Carver carver(nullptr);
  take_relabel(carver, n);
  return carver.bytes();
}

int64_t last_event_scratch_bytes(int64_t n) {
  Carver carver(nullptr);
  take_winner(carver, n);
  return carver.bytes();
}

int64_t transpose_index_scratch_bytes(int64_t n, int64_t targets) {
  Carver carver(nullptr);
  take_transpose(carver, n, targets);
  return carver.bytes();
}

void unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse, int64_t *count,
                    DeviceScratch scratch, Stream stream) {
  if (n == 0) {
    check(cudaMemsetAsync(count, 0, sizeof(int64_t), handle_of(stream)));
    return;
  }
  Carver carver(scratch.data);
  RelabelScratch own = take_relabel(carver, n);
  require_scratch(carver.bytes(), scratch);
  const PlacedEntries entries{ids, own.place};
  clear(own.table, stream);
  launch_entries(insert_kernel, n, stream, own.table, entries, n);
  launch_entries(first_kernel<int32_t>, n, stream, own.table, entries, n, own.rank);
  prefix_sum(own.scan.data, own.scan.bytes, own.rank, checked_entries(n), stream);
  launch_entries(relabel_kernel, n, stream, own.table, entries, own.rank, n, unique, inverse, count);
}

void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner, DeviceScratch scratch,
                Stream stream) {
  if (n == 0) {
    return;
  }
  Carver carver(scratch.data);
  const WinnerScratch own = take_winner(carver, n);
  require_scratch(carver.bytes(), scratch);
  const PlacedEntries entries{nodes, own.place};
  clear(own.table, stream);
  check(cudaMemsetAsync(own.newest, 0, (own.table.mask + 1) * sizeof(uint64_t), handle_of(stream)));
  launch_entries(newest_kernel, n, stream, own.table, entries, events, n, own.newest);
  launch_entries(elect_kernel, n, stream, own.table, entries, events, n, own.newest);
  launch_entries(first_kernel<uint8_t>, n, stream, own.table, entries, n, winner);
}

void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order,
                     DeviceScratch scratch, Stream stream) {
  if (n == 0) {
    check(cudaMemsetAsync(indptr, 0, (targets + 1) * sizeof(int64_t), handle_of(stream)));
    return;
  }
  Carver carver(scratch.data);
  TransposeScratch own = take_transpose(carver, n, targets);
  require_scratch(carver.bytes(), scratch);
  launch_entries(key_kernel, n, stream, index, n, targets, own.key, own.position);
  sort_positions(own.sort.data, own.sort.bytes, own, order, checked_entries(n), targets, stream);
  launch_entries(indptr_kernel, targets + 1, stream, own.sorted_key, n, targets, indptr);
}

} // namespace hpcgnn
