// Threads of one parallel region, and how rows are dealt to them: in pieces, to whoever is free, as another process or
// thread may take a core away at any time. Sums over rows are formed per group of rows; the groups depend on the number
// of rows only, so that no result depends on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
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

// The pieces 0 .. count - 1 of a job, each for one thread. For one job only.
class Pieces {
public:
  explicit Pieces(int64_t count) : count_(count) {}
  int64_t count() const { return count_; }

  // Calls work(piece) for those that this thread gets.
  template <typename Work> void each(const Work &work) {
    for (int64_t piece = next_.fetch_add(1); piece < count_; piece = next_.fetch_add(1)) {
      work(piece);
    }
  }

private:
  int64_t count_;
  std::atomic<int64_t> next_{0};
};

constexpr int64_t kRowUnit = 8,
                  kBlockRows = 128; // rows at a time of a product's tile; of a block that stays in the cache

// Blocks of rows that need no sums.
class RowBlocks {
public:
  explicit RowBlocks(int64_t rows) : rows_(rows), pieces_((rows + kBlockRows / 2 - 1) / (kBlockRows / 2)) {}

  // Calls work(block) for the blocks that this thread gets.
  template <typename Work> void each(const Work &work) {
    pieces_.each([&](int64_t piece) { work(part_of(rows_, piece, pieces_.count(), kRowUnit)); });
  }

private:
  int64_t rows_;
  Pieces pieces_;
};

// Rows in groups, each with its own sums, and groups in blocks.
class RowGroups {
public:
  explicit RowGroups(int64_t rows) : rows_(rows), pieces_(number(rows)) {}
  int64_t count() const { return pieces_.count(); }

  // Calls work(group, block, first) for the blocks of the groups that this thread gets; first: the group's first block,
  // which an empty group has too.
  template <typename Work> void each(const Work &work) {
    pieces_.each([&](int64_t group) {
      const Range all = part_of(rows_, group, count(), kRowUnit);
      const int64_t blocks = std::max<int64_t>(1, (all.size() + kBlockRows - 1) / kBlockRows);
      for (int64_t block = 0; block < blocks; ++block) {
        const Range part = part_of(all.size(), block, blocks, kRowUnit);
        work(group, Range{all.begin + part.begin, all.begin + part.end}, block == 0);
      }
    });
  }

private:
  static constexpr int64_t kGroupRows = 480, kFewest = 4, kMost = 16;

  // A multiple of four, so that up to four threads get equal shares.
  static int64_t number(int64_t rows) {
    const int64_t groups = (rows + kGroupRows - 1) / kGroupRows;
    return std::clamp<int64_t>((groups + kFewest - 1) / kFewest * kFewest, kFewest, kMost);
  }

  int64_t rows_;
  Pieces pieces_;
};

// sum [size] = (+ sum) the groups' sums [groups, size], in order of the groups; this thread's share of it.
template <typename Real>
void sum_groups(const Team &team, const Real *groups, int64_t count, int64_t size, bool add, Real *sum) {
  const Range part = team.share(size, 16);
  if (!add) {
    std::copy(groups + part.begin, groups + part.end, sum + part.begin);
  }
  for (int64_t group = add ? 0 : 1; group < count; ++group) {
    const Real *from = groups + group * size;
#pragma omp simd
    for (int64_t j = part.begin; j < part.end; ++j) {
      sum[j] += from[j];
    }
  }
}

} // namespace hpcgnn
