// The element functions of hpcgnn/relabel.h run pass by pass on host threads, as the CUDA build runs them on device
// threads; called by test_native_cuda.py. Thread t takes the entries t, t + threads, ...: neighbours race.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <thread>
#include <vector>

#include "hpcgnn/relabel.h"

using namespace hpcgnn;

namespace {

template <typename Element> void pass(int64_t n, int threads, const Element &element) {
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([=] {
      for (int64_t i = t; i < n; i += threads) {
        element(i);
      }
    });
  }
  for (std::thread &worker : workers) {
    worker.join();
  }
}

struct OwnTable {
  std::vector<int64_t> key;
  std::vector<uint32_t> first, place;
  explicit OwnTable(int64_t n) : key(table_size(n), -1), first(table_size(n), 0xFFFFFFFFu), place(n) {}
  PlaceTable table() { return {key.data(), first.data(), key.size() - 1}; }
};

} // namespace

extern "C" int64_t unique_relabel(const int64_t *ids, int64_t n, int64_t *unique, int32_t *inverse, int threads) {
  OwnTable own(n);
  const PlaceTable table = own.table();
  const PlacedEntries entries{ids, own.place.data()};
  std::vector<int32_t> rank(n);
  int32_t *ranks = rank.data();
  int64_t count = 0, *count_at = &count;
  pass(n, threads, [=](int64_t i) { insert_entry(table, entries, i); });
  pass(n, threads, [=](int64_t i) { ranks[i] = is_first(table, entries, i); });
  std::exclusive_scan(rank.begin(), rank.end(), rank.begin(), 0);
  pass(n, threads, [=](int64_t i) { relabel_entry(table, entries, ranks, n, i, unique, inverse, count_at); });
  return count;
}

extern "C" void last_event(const int64_t *nodes, const int64_t *events, int64_t n, uint8_t *winner, int threads) {
  OwnTable own(n);
  const PlaceTable table = own.table();
  const PlacedEntries entries{nodes, own.place.data()};
  std::vector<uint64_t> newest(table.mask + 1, 0);
  uint64_t *largest = newest.data();
  pass(n, threads, [=](int64_t i) { insert_newest(table, entries, events, largest, i); });
  pass(n, threads, [=](int64_t i) { elect_newest(table, entries, events, largest, i); });
  pass(n, threads, [=](int64_t i) { winner[i] = is_first(table, entries, i); });
}

// The radix sort looks at transpose_key_bits low bits only; so does this sort.
extern "C" void transpose_index(const int32_t *index, int64_t n, int64_t targets, int64_t *indptr, int64_t *order,
                                int threads) {
  const uint32_t mask = static_cast<uint32_t>((1ull << transpose_key_bits(targets)) - 1);
  std::vector<uint32_t> sorted(n);
  uint32_t *keys = sorted.data();
  std::iota(order, order + n, int64_t{0});
  std::stable_sort(order, order + n, [=](int64_t a, int64_t b) {
    return (transpose_key(index[a], targets) & mask) < (transpose_key(index[b], targets) & mask);
  });
  pass(n, threads, [=](int64_t i) { keys[i] = transpose_key(index[order[i]], targets); });
  pass(targets + 1, threads, [=](int64_t target) { indptr[target] = first_of_target(keys, n, target); });
}
