// Element functions of static neighbor sampling: one destination node, its in-edges (a row of a CSC), the positions of
// the chosen ones in increasing order, save where they are drawn with replacement. Integers only. A row may have up to
// 2^32 - 1 entries.
#pragma once

#include <vector>

#include "hpcgnn/base/team.h"
#include "hpcgnn/sample.h"

namespace hpcgnn {

enum class NeighborMode : int32_t { kUniform, kReplace, kLabor };

constexpr int32_t kAllNeighbors = INT32_MAX; // a fanout that takes every entry

struct NeighborSampler {
  const int64_t *indptr;          // [rows + 1]
  const int64_t *identity;        // [rows], keys the draws of a row; not read by LABOR
  const uint32_t *weight;         // [entries], null where all entries weigh the same; null for LABOR
  const int64_t *source;          // [entries] rows of source_identity, null where that is by entry
  const int64_t *source_identity; // LABOR: keys the draw of a source
  int32_t fanout;
  NeighborMode mode;
  RandomContext context;
};

// Of rows of several relations: the relation of every row of a call [n], best with equal ones side by side, and the
// fanouts by relation [count]. of_row: null where all rows have the sampler's relation and fanout.
struct RowRelations {
  const int32_t *of_row;
  const int32_t *fanouts;
  int64_t count;
};

// The sampler of row i of a call.
HPCGNN_HD NeighborSampler sampler_of_row(NeighborSampler sampler, const RowRelations &relations, int64_t i) {
  if (relations.of_row != nullptr) {
    sampler.context.relation = static_cast<uint32_t>(relations.of_row[i]);
    sampler.fanout = relations.fanouts[relations.of_row[i]];
    sampler.mode = sampler.fanout == kAllNeighbors ? NeighborMode::kUniform : sampler.mode;
  }
  return sampler;
}

struct NeighborRow {
  int64_t begin, degree;
};

HPCGNN_HD NeighborRow neighbor_row(const NeighborSampler &sampler, int64_t node) {
  const int64_t begin = sampler.indptr[node];
  return {begin, sampler.indptr[node + 1] - begin};
}

// Entries of positive weight, counted up to `most`.
HPCGNN_HD int64_t count_positive(const uint32_t *weight, const NeighborRow &row, int64_t most) {
  int64_t count = 0;
  for (int64_t i = 0; i < row.degree && count < most; ++i) {
    count += weight[row.begin + i] > 0;
  }
  return count;
}

// How many positions a row gets: an entry of weight 0 is never drawn.
HPCGNN_HD int64_t neighbor_count(const NeighborSampler &sampler, const NeighborRow &row) {
  const bool replace = sampler.mode == NeighborMode::kReplace;
  const int64_t enough = replace ? 1 : sampler.fanout;
  const int64_t most = row.degree < enough ? row.degree : enough;
  const int64_t count = sampler.weight == nullptr ? most : count_positive(sampler.weight, row, enough);
  return replace && count > 0 ? sampler.fanout : count;
}

// The first `count` entries that may be drawn.
HPCGNN_HD void take_all(const uint32_t *weight, const NeighborRow &row, int64_t count, int64_t *out) {
  for (int64_t i = 0, taken = 0; taken < count; ++i) {
    if (weight == nullptr || weight[row.begin + i] > 0) {
      out[taken++] = row.begin + i;
    }
  }
}

// Floyd's algorithm; slot s of the counter is the s-th draw.
HPCGNN_HD void draw_distinct(const RandomContext &context, uint64_t identity, const NeighborRow &row, int32_t count,
                             int64_t *out) {
  RowDraws draws(context, identity);
  for (int32_t slot = 0; slot < count; ++slot) {
    const int64_t last = row.degree - count + slot;
    int64_t choice = row.begin + draws.below(slot, static_cast<uint32_t>(last + 1));
    if (contains_sorted(out, slot, choice)) {
      choice = row.begin + last;
    }
    insert_sorted(out, slot, choice);
  }
}

HPCGNN_HD void draw_repeated(const RandomContext &context, uint64_t identity, const NeighborRow &row, int32_t count,
                             int64_t *out) {
  RowDraws draws(context, identity);
  for (int32_t slot = 0; slot < count; ++slot) {
    out[slot] = row.begin + draws.below(slot, static_cast<uint32_t>(row.degree));
  }
}

// The first entry at which the sum of the weights so far exceeds the target; those in `skip` [skipped], increasing, do
// not count.
HPCGNN_HD int64_t find_weight(const uint32_t *weight, const NeighborRow &row, uint64_t target, const int64_t *skip,
                              int32_t skipped) {
  int64_t position = row.begin;
  for (int32_t next = 0;; ++position) {
    if (next < skipped && skip[next] == position) {
      ++next;
    } else if (target < weight[position]) {
      return position;
    } else {
      target -= weight[position];
    }
  }
}

// Draws in proportion to weight, each among the entries that are left where they are not put back (successive
// sampling).
HPCGNN_HD void draw_weighted(const NeighborSampler &sampler, uint64_t identity, const NeighborRow &row, int32_t count,
                             int64_t *out) {
  const bool replace = sampler.mode == NeighborMode::kReplace;
  uint64_t total = 0;
  for (int64_t i = 0; i < row.degree; ++i) {
    total += sampler.weight[row.begin + i];
  }
  for (int32_t slot = 0; slot < count; ++slot) {
    const uint64_t target = random_below_wide(sampler.context, identity, slot, total);
    const int64_t choice = find_weight(sampler.weight, row, target, out, replace ? 0 : slot);
    if (replace) {
      out[slot] = choice;
    } else {
      insert_sorted(out, slot, choice);
      total -= sampler.weight[choice];
    }
  }
}

// The entries of smallest key so far, by key; of equal keys the earlier entry is smaller.
struct SmallestKeys {
  uint64_t *key;     // [count]
  int64_t *position; // [count]
  int32_t count, size;

  HPCGNN_HD bool wants(uint64_t candidate) const { return size < count || candidate < key[count - 1]; }

  HPCGNN_HD void insert(uint64_t candidate, int64_t at) {
    int32_t i = size < count ? size++ : count - 1;
    for (; i > 0 && key[i - 1] > candidate; --i) {
      key[i] = key[i - 1];
      position[i] = position[i - 1];
    }
    key[i] = candidate;
    position[i] = at;
  }

  HPCGNN_HD void sort_positions() {
    for (int32_t i = 1; i < size; ++i) {
      insert_sorted(position, i, position[i]);
    }
  }
};

HPCGNN_HD uint64_t source_key(const NeighborSampler &sampler, int64_t position) {
  const int64_t at = sampler.source == nullptr ? position : sampler.source[position];
  return static_cast<uint64_t>(sampler.source_identity[at]);
}

// LABOR-0 by sequential Poisson sampling: the entries whose sources have the smallest random numbers, and a source has
// one number for all rows of the call.
HPCGNN_HD void draw_labor(const NeighborSampler &sampler, const NeighborRow &row, int32_t count, int64_t *out,
                          uint64_t *keys) {
  const RandomKey key = random_key(sampler.context);
  SmallestKeys smallest{keys, out, count, 0};
  for (int64_t position = row.begin; position < row.begin + row.degree; ++position) {
    const RandomBlock block = philox(random_counter(sampler.context, source_key(sampler, position), 0), key);
    const uint64_t candidate = static_cast<uint64_t>(block.word[0]) << 32 | block.word[1];
    if (smallest.wants(candidate)) {
      smallest.insert(candidate, position);
    }
  }
  smallest.sort_positions();
}

// A row's positions out[count], count being its neighbor_count; keys [count]: scratch of LABOR.
HPCGNN_HD void sample_neighbors_one(const NeighborSampler &sampler, int64_t node, int64_t count, int64_t *out,
                                    uint64_t *keys) {
  const NeighborRow row = neighbor_row(sampler, node);
  const bool replace = sampler.mode == NeighborMode::kReplace;
  const int32_t slots = static_cast<int32_t>(count);
  if (count == 0 || (!replace && row.degree <= sampler.fanout)) {
    take_all(sampler.weight, row, count, out);
  } else if (sampler.mode == NeighborMode::kLabor) {
    draw_labor(sampler, row, slots, out, keys);
  } else if (sampler.weight != nullptr) {
    draw_weighted(sampler, static_cast<uint64_t>(sampler.identity[node]), row, slots, out);
  } else if (replace) {
    draw_repeated(sampler.context, static_cast<uint64_t>(sampler.identity[node]), row, slots, out);
  } else {
    draw_distinct(sampler.context, static_cast<uint64_t>(sampler.identity[node]), row, slots, out);
  }
}

// count [n]: how many positions each node's row gets, in a CSC of so many rows.
void count_neighbors(const NeighborSampler &sampler, const RowRelations &relations, int64_t rows, const int64_t *nodes,
                     int64_t n, int64_t *count, Execution execution);
// offsets [n + 1]: sums of those counts; positions [offsets[n]]; keys, as long: scratch of LABOR.
void sample_neighbors(const NeighborSampler &sampler, const RowRelations &relations, const int64_t *nodes, int64_t n,
                      const int64_t *offsets, int64_t *positions, uint64_t *keys, Execution execution);

constexpr int64_t kSampleRows = 256; // rows that one thread samples at a time

// Entries that are not drawn: increasing positions [count]. On the CPU; takes memory for them alone.
class LostEntries {
public:
  LostEntries() = default;
  LostEntries(const int64_t *positions, int64_t count);

  // How many entries of the row are lost.
  int64_t count_in(const NeighborRow &row) const { return count_ > 0 && may_have(row) ? find_in(row).size() : 0; }
  Range find_in(const NeighborRow &row) const;
  int64_t position(int64_t place) const { return positions_[place]; }
  // Increasing positions [n] in a row without its lost entries, to those in the row.
  void skip(const NeighborRow &row, int64_t *positions, int64_t n) const;

private:
  static constexpr int kShift = 3;        // entries of a flag: 2^kShift
  static constexpr int64_t kFlagged = 64; // entries of a row up to which its flags are read

  // False where no flag of the row's entries is set.
  bool may_have(const NeighborRow &row) const {
    if (row.degree > kFlagged) {
      return true;
    }
    const int64_t last = (row.begin + row.degree - 1) >> kShift;
    bool any = (flags_[(row.begin >> kShift) & mask_] | flags_[last & mask_]) != 0;
    for (int64_t at = (row.begin >> kShift) + 1; at < last; ++at) {
      any |= flags_[at & mask_] != 0;
    }
    return any;
  }

  const int64_t *positions_ = nullptr;
  int64_t count_ = 0, mask_ = 0;
  std::vector<uint8_t> flags_; // by a position's upper bits, of which only some are told apart
};

// How many positions row i of a call gets.
int64_t count_row(const NeighborSampler &sampler, const RowRelations &relations, const LostEntries &lost,
                  const int64_t *nodes, int64_t i);

// sample_neighbors on the CPU for one thread's rows, several at once in the lanes of a register where the draws allow
// it. A row's draws do not see its lost entries. Row i's positions are written at offsets[i] - offsets[0].
void sample_rows(const NeighborSampler &sampler, const RowRelations &relations, const LostEntries &lost,
                 const int64_t *nodes, int64_t n, const int64_t *offsets, int64_t *positions, uint64_t *keys);

} // namespace hpcgnn
