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
constexpr int32_t kWide = 8;        // entries of a row that are written without a loop of as many rounds
constexpr int32_t kLaneFanout = 64; // draws are kept in registers and the nearest cache up to here

// Rows of more than `fanout` entries, Floyd's algorithm for all of them at once. They may be of several relations.
class FloydLanes {
public:
  FloydLanes(const RandomContext &context, const int64_t *source) : context_(context), source_(source) {}

  void add(int32_t fanout, uint32_t relation, uint64_t identity, const NeighborRow &row, int64_t *out) {
    if (fanout != fanout_) {
      finish();
      fanout_ = fanout;
    }
    context_.relation = relation_[size_] = relation;
    last_[size_] = random_counter(context_, 0, 0).word[3];
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
    const U32 last = simd::load_lanes(last_);
    simd::LaneBlock block;
    for (int32_t slot = 0; slot < fanout_; ++slot) {
      if ((slot & 3) == 0) {
        block = simd::philox(context_, low, high, last, slot >> 2);
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
  void draw_again(int32_t slot, U32 low, U32 bound, U32 &choice) {
    for (int lane = 0; lane < size_; ++lane) {
      if (low[lane] < bound[lane]) {
        context_.relation = relation_[lane];
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

  RandomContext context_;
  int32_t fanout_ = 0;
  const int64_t *source_;
  int size_ = 0;
  alignas(64) uint32_t low_[kLanes32] = {}, high_[kLanes32] = {}, degree_[kLanes32] = {}, last_[kLanes32] = {};
  uint32_t relation_[kLanes32];
  uint64_t identity_[kLanes32];
  int64_t begin_[kLanes32];
  int64_t *out_[kLanes32];
  U32 chosen_[kLaneFanout];
};

// A row without its lost entries, as the only row of a sampler. It takes memory from the thread, so one at a time.
class RestOfRow {
public:
  RestOfRow(const NeighborSampler &sampler, const LostEntries &lost, int64_t node, const NeighborRow &row) {
    keep(lost, row);
    bounds_[1] = static_cast<int64_t>(scratch().position.size());
    sampler_ = sampler;
    sampler_.indptr = bounds_;
    sampler_.identity = sampler.identity == nullptr ? nullptr : sampler.identity + node;
    if (sampler.weight != nullptr) {
      keep_weights(sampler.weight);
    }
    if (sampler.mode == NeighborMode::kLabor && sampler.identity != nullptr) {
      keep_sources(sampler.source);
    }
  }
  const NeighborSampler &sampler() const { return sampler_; }
  NeighborRow row() const { return {0, bounds_[1]}; }

  // Positions in the sampler's only row, to positions in the row with its lost entries.
  void lead_back(int64_t *positions, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      positions[i] = scratch().position[positions[i]];
    }
  }

private:
  struct Scratch {
    std::vector<int64_t> position, source;
    std::vector<uint32_t> weight;
  };

  static Scratch &scratch() {
    thread_local Scratch kept;
    return kept;
  }

  void keep(const LostEntries &lost, const NeighborRow &row) {
    std::vector<int64_t> &position = scratch().position;
    const Range of_row = lost.find_in(row);
    position.clear();
    int64_t next = of_row.begin;
    for (int64_t at = row.begin; at < row.begin + row.degree; ++at) {
      if (next < of_row.end && lost.position(next) == at) {
        ++next;
      } else {
        position.push_back(at);
      }
    }
  }

  void keep_weights(const uint32_t *weight) {
    scratch().weight.clear();
    for (int64_t position : scratch().position) {
      scratch().weight.push_back(weight[position]);
    }
    sampler_.weight = scratch().weight.data();
  }

  void keep_sources(const int64_t *source) {
    scratch().source.clear();
    for (int64_t position : scratch().position) {
      scratch().source.push_back(source == nullptr ? position : source[position]);
    }
    sampler_.source = scratch().source.data();
  }

  NeighborSampler sampler_;
  int64_t bounds_[2] = {0, 0};
};

// draw_labor, with the numbers of as many sources at a time as there are lanes.
void draw_labor_lanes(const NeighborSampler &sampler, const NeighborRow &row, int32_t count, int64_t *out,
                      uint64_t *keys) {
  SmallestKeys smallest{keys, out, count, 0};
  alignas(64) uint32_t low[kLanes32] = {}, high[kLanes32] = {};
  const U32 shared = U32{} + random_counter(sampler.context, 0, 0).word[3];
  for (int64_t first = 0; first < row.degree; first += kLanes32) {
    const int size = static_cast<int>(std::min<int64_t>(kLanes32, row.degree - first));
    for (int lane = 0; lane < size; ++lane) {
      const uint64_t identity = source_key(sampler, row.begin + first + lane);
      low[lane] = static_cast<uint32_t>(identity);
      high[lane] = static_cast<uint32_t>(identity >> 32) & 0xFFFFu;
    }
    const simd::LaneBlock block =
        simd::philox(sampler.context, simd::load_lanes(low), simd::load_lanes(high), shared, 0);
    for (int lane = 0; lane < size; ++lane) {
      const uint64_t candidate = static_cast<uint64_t>(block.word[0][lane]) << 32 | block.word[1][lane];
      if (smallest.wants(candidate)) {
        smallest.insert(candidate, row.begin + first + lane);
      }
    }
  }
  smallest.sort_positions();
}

// One row, all of whose entries may be drawn.
void sample_row(const NeighborSampler &sampler, int64_t node, const NeighborRow &row, int64_t count, int64_t *out,
                uint64_t *keys) {
  if (sampler.mode == NeighborMode::kLabor && row.degree > sampler.fanout && count > 0) {
    draw_labor_lanes(sampler, row, static_cast<int32_t>(count), out, keys);
  } else {
    sample_neighbors_one(sampler, node, count, out, nullptr);
  }
}

void require_below(int64_t value, const char *what, int64_t position, int64_t bound) {
  if (value < 0 || value >= bound) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(value) + " at position " +
                                std::to_string(position) + " is not in [0, " + std::to_string(bound) + ")");
  }
}

} // namespace

LostEntries::LostEntries(const int64_t *positions, int64_t count) : positions_(positions), count_(count) {
  constexpr int64_t kFlagsEach = 16; // so that few entries that stay have a flag of a lost one
  int64_t flags = 64;
  while (flags < kFlagsEach * count) {
    flags *= 2;
  }
  flags_.assign(flags, 0);
  mask_ = flags - 1;
  for (int64_t i = 0; i < count; ++i) {
    flags_[(positions[i] >> kShift) & mask_] = 1;
  }
}

Range LostEntries::find_in(const NeighborRow &row) const {
  const int64_t *end = positions_ + count_, *first = std::lower_bound(positions_, end, row.begin), *last = first;
  while (last < end && *last < row.begin + row.degree) {
    ++last;
  }
  return {first - positions_, last - positions_};
}

void LostEntries::skip(const NeighborRow &row, int64_t *positions, int64_t n) const {
  const Range of_row = find_in(row);
  int64_t passed = 0;
  for (int64_t i = 0; i < n; ++i) {
    while (passed < of_row.size() && positions_[of_row.begin + passed] <= positions[i] + passed) {
      ++passed;
    }
    positions[i] += passed;
  }
}

int64_t count_row(const NeighborSampler &sampler, const RowRelations &relations, const LostEntries &lost,
                  const int64_t *nodes, int64_t i) {
  const NeighborSampler of_row = sampler_of_row(sampler, relations, i);
  NeighborRow row = neighbor_row(sampler, nodes[i]);
  const int64_t num_lost = lost.count_in(row);
  if (num_lost > 0 && sampler.weight != nullptr) {
    const RestOfRow rest(of_row, lost, nodes[i], row);
    return neighbor_count(rest.sampler(), rest.row());
  }
  row.degree -= num_lost;
  return neighbor_count(of_row, row);
}

void sample_rows(const NeighborSampler &sampler, const RowRelations &relations, const LostEntries &lost,
                 const int64_t *nodes, int64_t n, const int64_t *offsets, int64_t *positions, uint64_t *keys) {
  const bool uniform = sampler.mode == NeighborMode::kUniform && sampler.weight == nullptr;
  FloydLanes lanes(sampler.context, sampler.source);
  std::vector<int64_t> shortened; // rows that were drawn as if their lost entries did not exist
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = offsets[i] - offsets[0], count = offsets[i + 1] - offsets[i], node = nodes[i];
    NeighborRow row = neighbor_row(sampler, node);
    const int64_t num_lost = lost.count_in(row);
    const bool related = relations.of_row != nullptr;
    const uint32_t relation = related ? static_cast<uint32_t>(relations.of_row[i]) : sampler.context.relation;
    const int32_t fanout = related ? relations.fanouts[relation] : sampler.fanout;
    uint64_t *keys_of_row = keys == nullptr ? nullptr : keys + at;
    if (num_lost > 0 && uniform) {
      shortened.push_back(i);
      row.degree -= num_lost;
    }
    if (num_lost > 0 && !uniform) {
      const RestOfRow rest(sampler_of_row(sampler, relations, i), lost, node, row);
      sample_row(rest.sampler(), 0, rest.row(), count, positions + at, keys_of_row);
      rest.lead_back(positions + at, count);
    } else if (uniform && row.degree <= std::min(fanout, kWide) && at + kWide <= offsets[n] - offsets[0]) {
      for (int64_t j = 0; j < kWide; ++j) { // more than the row has: the rows behind it are written later
        positions[at + j] = row.begin + j;
      }
    } else if (uniform && row.degree <= fanout) {
      take_all(nullptr, row, count, positions + at);
    } else if (uniform && fanout <= kLaneFanout) {
      lanes.add(fanout, relation, static_cast<uint64_t>(sampler.identity[node]), row, positions + at);
    } else if (uniform) {
      const RandomContext context = sampler_of_row(sampler, relations, i).context;
      draw_distinct(context, static_cast<uint64_t>(sampler.identity[node]), row, fanout, positions + at);
    } else {
      sample_row(sampler_of_row(sampler, relations, i), node, row, count, positions + at, keys_of_row);
    }
  }
  lanes.finish();
  for (int64_t i : shortened) {
    lost.skip(neighbor_row(sampler, nodes[i]), positions + offsets[i] - offsets[0], offsets[i + 1] - offsets[i]);
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
      const RowRelations of_block{relations.of_row == nullptr ? nullptr : relations.of_row + begin, relations.fanouts,
                                  relations.count};
      sample_rows(sampler, of_block, {}, nodes + begin, size, offsets + begin, positions + offsets[begin],
                  keys == nullptr ? nullptr : keys + offsets[begin]);
    });
  });
}

} // namespace hpcgnn
