// Static neighbor sampling on the CPU.
#include "hpcgnn/neighbors.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "hpcgnn/base/lanes.h"
#include "hpcgnn/base/team.h"

namespace hpcgnn {
namespace {

using simd::kLanes32, simd::U32;

constexpr int64_t kAhead = 32;      // rows by which row bounds are fetched ahead
constexpr int32_t kLaneFanout = 64; // draws are kept in registers and the nearest cache up to here

// Rows of more than `fanout` entries, Floyd's algorithm for all of them at once.
class FloydLanes {
public:
  FloydLanes(const RandomContext &context, int32_t fanout, const int64_t *source)
      : context_(context), fanout_(fanout), source_(source) {}

  void add(uint64_t identity, const NeighborRow &row, int64_t *out) {
    low_[size_] = static_cast<uint32_t>(identity);
    high_[size_] = static_cast<uint32_t>(identity >> 32) & 0xFFFFu;
    degree_[size_] = static_cast<uint32_t>(row.degree);
    identity_[size_] = identity;
    begin_[size_] = row.begin;
    out_[size_] = out;
    if (++size_ == kLanes32) {
      finish();
    }
  }

  // Draws for the rows that are left; lanes without one repeat rows of before, in vain.
  void finish() {
    if (size_ > 0) {
      draw();
      write();
      size_ = 0;
    }
  }

private:
  // Ranks in their rows, increasing from slot to slot.
  void draw() {
    const U32 low = simd::load_lanes(low_), high = simd::load_lanes(high_), degree = simd::load_lanes(degree_);
    simd::LaneBlock block;
    for (int32_t slot = 0; slot < fanout_; ++slot) {
      if ((slot & 3) == 0) {
        block = simd::philox(context_, low, high, slot >> 2);
      }
      const U32 bound = degree - static_cast<uint32_t>(fanout_ - slot - 1);
      const simd::Product32 product = simd::multiply(block.word[slot & 3], bound);
      U32 choice = product.high;
      if (__builtin_expect(simd::any_lane((U32)(product.low < bound)), 0)) {
        draw_again(slot, product.low, bound, choice);
      }
      place(slot, choice, bound - 1u);
    }
  }

  // The lanes whose first word may have to be rejected.
  void draw_again(int32_t slot, U32 low, U32 bound, U32 &choice) const {
    for (int lane = 0; lane < size_; ++lane) {
      if (low[lane] < bound[lane]) {
        choice[lane] = random_below(context_, identity_[lane], slot, bound[lane]);
      }
    }
  }

  // Inserts the choice, or `last` where it is taken already.
  void place(int32_t slot, U32 choice, U32 last) {
    U32 taken{};
    for (int32_t before = 0; before < slot; ++before) {
      taken |= (U32)(chosen_[before] == choice);
    }
    choice = taken ? last : choice;
    for (int32_t before = 0; before < slot; ++before) {
      const U32 kept = chosen_[before];
      chosen_[before] = kept < choice ? kept : choice;
      choice = kept < choice ? choice : kept;
    }
    chosen_[slot] = choice;
  }

  void write() const {
    const uint32_t *chosen = reinterpret_cast<const uint32_t *>(chosen_);
    for (int lane = 0; lane < size_; ++lane) {
      for (int32_t slot = 0; slot < fanout_; ++slot) {
        const int64_t position = begin_[lane] + chosen[slot * kLanes32 + lane];
        if (source_ != nullptr) {
          __builtin_prefetch(source_ + position);
        }
        out_[lane][slot] = position;
      }
    }
  }

  const RandomContext &context_;
  int32_t fanout_;
  const int64_t *source_;
  int size_ = 0;
  alignas(64) uint32_t low_[kLanes32] = {}, high_[kLanes32] = {}, degree_[kLanes32] = {};
  uint64_t identity_[kLanes32];
  int64_t begin_[kLanes32];
  int64_t *out_[kLanes32];
  U32 chosen_[kLaneFanout];
};

void sample_distinct_rows(const NeighborSampler &sampler, const int64_t *nodes, int64_t n, const int64_t *offsets,
                          int64_t *positions) {
  FloydLanes lanes(sampler.context, sampler.fanout, sampler.source);
  for (int64_t i = 0; i < n; ++i) {
    const NeighborRow row = neighbor_row(sampler, nodes[i]);
    int64_t *out = positions + (offsets[i] - offsets[0]);
    if (row.degree > sampler.fanout) {
      lanes.add(static_cast<uint64_t>(sampler.identity[nodes[i]]), row, out);
    } else {
      take_all(nullptr, row, row.degree, out);
    }
  }
  lanes.finish();
}

// draw_labor, with the numbers of as many sources at a time as there are lanes.
void draw_labor_lanes(const NeighborSampler &sampler, const NeighborRow &row, int32_t count, int64_t *out,
                      uint64_t *keys) {
  SmallestKeys smallest{keys, out, count, 0};
  alignas(64) uint32_t low[kLanes32] = {}, high[kLanes32] = {};
  for (int64_t first = 0; first < row.degree; first += kLanes32) {
    const int size = static_cast<int>(std::min<int64_t>(kLanes32, row.degree - first));
    for (int lane = 0; lane < size; ++lane) {
      const uint64_t identity = source_key(sampler, row.begin + first + lane);
      low[lane] = static_cast<uint32_t>(identity);
      high[lane] = static_cast<uint32_t>(identity >> 32) & 0xFFFFu;
    }
    const simd::LaneBlock block = simd::philox(sampler.context, simd::load_lanes(low), simd::load_lanes(high), 0);
    for (int lane = 0; lane < size; ++lane) {
      const uint64_t candidate = static_cast<uint64_t>(block.word[0][lane]) << 32 | block.word[1][lane];
      if (smallest.wants(candidate)) {
        smallest.insert(candidate, row.begin + first + lane);
      }
    }
  }
  smallest.sort_positions();
}

// Behind the last of the rows up to `end` that follow row `first` and have its relation.
int64_t end_of_relation(const RowRelations &relations, int64_t first, int64_t end) {
  if (relations.of_row == nullptr) {
    return end;
  }
  int64_t last = first + 1;
  while (last < end && relations.of_row[last] == relations.of_row[first]) {
    ++last;
  }
  return last;
}

void require_below(int64_t value, const char *what, int64_t position, int64_t bound) {
  if (value < 0 || value >= bound) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(value) + " at position " +
                                std::to_string(position) + " is not in [0, " + std::to_string(bound) + ")");
  }
}

} // namespace

void sample_rows(const NeighborSampler &sampler, const int64_t *nodes, int64_t n, const int64_t *offsets,
                 int64_t *positions, uint64_t *keys) {
  const bool uniform = sampler.mode == NeighborMode::kUniform && sampler.weight == nullptr;
  if (uniform && sampler.fanout <= kLaneFanout) {
    sample_distinct_rows(sampler, nodes, n, offsets, positions);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = offsets[i] - offsets[0], count = offsets[i + 1] - offsets[i];
    const NeighborRow row = neighbor_row(sampler, nodes[i]);
    if (sampler.mode == NeighborMode::kLabor && row.degree > sampler.fanout && count > 0) {
      draw_labor_lanes(sampler, row, static_cast<int32_t>(count), positions + at, keys + at);
    } else {
      sample_neighbors_one(sampler, nodes[i], count, positions + at, nullptr);
    }
  }
}

void count_neighbors(const NeighborSampler &sampler, const RowRelations &relations, int64_t rows, const int64_t *nodes,
                     int64_t n, int64_t *count, int threads) {
  for (int64_t i = 0; relations.of_row != nullptr && i < n; ++i) {
    require_below(relations.of_row[i], "relation", i, relations.count);
  }
  int64_t wrong = n;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(min : wrong)
  for (int64_t i = 0; i < n; ++i) {
    if (nodes[i] < 0 || nodes[i] >= rows) {
      wrong = std::min(wrong, i);
    } else {
      __builtin_prefetch(sampler.indptr + nodes[std::min(i + kAhead, n - 1)]);
      count[i] = neighbor_count(sampler_of_row(sampler, relations, i), neighbor_row(sampler, nodes[i]));
    }
  }
  if (wrong < n) {
    require_below(nodes[wrong], "node", wrong, rows);
  }
}

void sample_neighbors(const NeighborSampler &sampler, const RowRelations &relations, const int64_t *nodes, int64_t n,
                      const int64_t *offsets, int64_t *positions, uint64_t *keys, int threads) {
  Pieces blocks((n + kSampleRows - 1) / kSampleRows);
  in_parallel(threads, [&](const Team &) {
    blocks.each([&](int64_t block) {
      const int64_t begin = block * kSampleRows, size = std::min(kSampleRows, n - begin);
      for (int64_t i = begin; i < begin + size; ++i) {
        __builtin_prefetch(sampler.indptr + nodes[i]);
        __builtin_prefetch(sampler.identity + nodes[i]);
      }
      for (int64_t first = begin, last; first < begin + size; first = last) {
        last = end_of_relation(relations, first, begin + size);
        sample_rows(sampler_of_row(sampler, relations, first), nodes + first, last - first, offsets + first,
                    positions + offsets[first], keys == nullptr ? nullptr : keys + offsets[first]);
      }
    });
  });
}

} // namespace hpcgnn
