// Static neighbor sampling on the CPU for the rows of one thread, some entries of which may not be drawn.
#pragma once

#include <vector>

#include "hpcgnn/base/team.h"
#include "hpcgnn/neighbors.h"

namespace hpcgnn {

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
