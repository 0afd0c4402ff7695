// Threads of one parallel region, and how rows are dealt to them. Sums over rows are formed per group of rows; the
// groups depend on the number of rows only, so that no result depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace hpcgnn {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Part `part` of `parts` nearly equal consecutive parts of [0, n), cut at multiples of `unit`.
inline Range part_of(int64_t n, int64_t part, int64_t parts, int64_t unit = 1) {
  const int64_t units = (n + unit - 1) / unit;
  return {std::min(n, units * part / parts * unit), std::min(n, units * (part + 1) / parts * unit)};
}

struct Team {
  int rank, size;
  Range share(int64_t n, int64_t unit = 1) const { return part_of(n, rank, size, unit); }
  void barrier() const {
#if defined(_OPENMP)
#pragma omp barrier
#endif
  }
};

// Calls work(team) on every thread of one region. Nothing in it may throw, save for want of memory, which ends the
// program.
template <typename Work> void in_parallel(int threads, const Work &work) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) if (threads > 1)
  work(Team{omp_get_thread_num(), omp_get_num_threads()});
#else
  (void)threads;
  work(Team{0, 1});
#endif
}

// Rows in groups, each with its own sums, and groups in blocks that stay in the cache. The number of groups is a
// multiple of four, so that up to four threads get equal shares.
struct RowGroups {
  static constexpr int64_t kUnit = 8, kGroupRows = 480, kBlockRows = 128, kFewest = 4, kMost = 16;
  int64_t rows;

  int64_t count() const {
    const int64_t wanted = (rows + kGroupRows - 1) / kGroupRows;
    return std::clamp<int64_t>((wanted + kFewest - 1) / kFewest * kFewest, kFewest, kMost);
  }

  // Calls work(group, block, first) for the blocks of this thread's groups; first: the group's first block, which an
  // empty group has too.
  template <typename Work> void each(const Team &team, const Work &work) const {
    const Range mine = team.share(count());
    for (int64_t group = mine.begin; group < mine.end; ++group) {
      const Range all = part_of(rows, group, count(), kUnit);
      const int64_t blocks = std::max<int64_t>(1, (all.size() + kBlockRows - 1) / kBlockRows);
      for (int64_t block = 0; block < blocks; ++block) {
        const Range part = part_of(all.size(), block, blocks, kUnit);
        work(group, Range{all.begin + part.begin, all.begin + part.end}, block == 0);
      }
    }
  }
};

// sum [size] = (+ sum) the groups' sums [groups, size], in order of the groups; this thread's share of it.
template <typename Real>
void sum_groups(const Team &team, const Real *groups, int64_t count, int64_t size, bool add, Real *sum) {
  const Range mine = team.share(size, 16);
  if (!add) {
    std::copy(groups + mine.begin, groups + mine.end, sum + mine.begin);
  }
  for (int64_t group = add ? 0 : 1; group < count; ++group) {
    const Real *from = groups + group * size;
#pragma omp simd
    for (int64_t j = mine.begin; j < mine.end; ++j) {
      sum[j] += from[j];
    }
  }
}

} // namespace hpcgnn
