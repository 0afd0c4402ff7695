#include "hpcgnn/workspace.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hpcgnn {
namespace {

constexpr size_t kLine = 64, kHugePage = size_t(2) << 20, kBehind = 256;

struct Block {
  void *memory;
  size_t bytes;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> free;
};

// Never destroyed: buffers may outlive static objects when the interpreter ends.
Pool &pool() {
  static Pool *const pool = new Pool;
  return *pool;
}

void *allocate(size_t bytes) {
  const size_t alignment = bytes < kHugePage ? kLine : kHugePage;
  const size_t whole = (bytes + kBehind + alignment - 1) / alignment * alignment;
  void *memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
#if defined(__linux__)
  if (alignment == kHugePage) {
    madvise(memory, whole, MADV_HUGEPAGE); // thousands of rows a step: fewer misses of the page table's cache
  }
#endif
  return memory;
}

} // namespace

// The smallest free block that fits, unless it is far too large. Otherwise a new one, with room to grow, in place of
// the largest of those that are a little too small: sizes that creep up leave no trail of blocks behind.
void *take_memory(size_t &bytes) {
  bytes = std::max(bytes, kLine);
  Block fitting{nullptr, 0}, outgrown{nullptr, 0};
  {
    std::lock_guard<std::mutex> lock(pool().mutex);
    std::vector<Block> &free = pool().free;
    auto best = free.end(), small = free.end();
    for (auto block = free.begin(); block != free.end(); ++block) {
      if (block->bytes >= bytes && block->bytes / 4 <= bytes && (best == free.end() || block->bytes < best->bytes)) {
        best = block;
      }
      if (block->bytes < bytes && block->bytes * 4 >= bytes && (small == free.end() || block->bytes > small->bytes)) {
        small = block;
      }
    }
    const auto chosen = best != free.end() ? best : small;
    if (chosen != free.end()) {
      (best != free.end() ? fitting : outgrown) = *chosen;
      *chosen = free.back();
      free.pop_back();
    }
  }
  if (fitting.memory == nullptr) {
    std::free(outgrown.memory);
    fitting.bytes = bytes + bytes / 8;
    fitting.memory = allocate(fitting.bytes);
  }
  bytes = fitting.bytes;
  return fitting.memory;
}

void give_memory(void *memory, size_t bytes) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().free.push_back({memory, bytes});
}

} // namespace hpcgnn
