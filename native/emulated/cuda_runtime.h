// As much of the CUDA runtime as the kernels here use, on host threads, so that they run and are tested without a GPU.
//
// Blocks run side by side on OpenMP threads, a block's threads one after another. Threads of a cooperative launch are
// fibers instead: a warp's lanes go from one warp-wide operation to the next together, and a lane that leaves or comes
// late is an error. Memory is the host's, every stream is done at once.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t { cudaSuccess };
struct CUstream_st;
using cudaStream_t = CUstream_st *;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
inline const char *cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

namespace emulated {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;

// The lanes of one warp as fibers. A lane runs until its next warp-wide operation, then the next lane does.
class Warp {
public:
  template <typename Body> void run(unsigned lanes, const Body &body) {
    body_ = body;
    lanes_ = lanes;
    lane_.resize(lanes);
    for (unsigned i = 0; i < lanes; ++i) {
      start(i);
    }
    for (unsigned running = lanes; running > 0;) {
      running = 0;
      for (current_ = 0; current_ < lanes; ++current_) {
        running += resume(current_);
      }
      if (running > 0 && running < lanes) {
        throw std::logic_error("some lanes of a warp left before an operation of the whole warp");
      }
    }
  }

  // Returns once every lane has arrived.
  void meet() {
    Lane &lane = lane_[current_];
    swapcontext(&lane.context, &scheduler_);
    threadIdx = lane.index;
  }

  template <typename T> T exchange(T value, unsigned partner) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register or two");
    std::memcpy(&lane_[current_].given, &value, sizeof(T));
    meet();
    T result;
    std::memcpy(&result, &lane_[partner].given, sizeof(T));
    meet();
    return result;
  }

  unsigned lane() const { return current_; }

private:
  struct Lane {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    dim3 index;
    uint64_t given = 0;
    bool running = false;
  };

  static void enter(unsigned high, unsigned low) {
    const auto address = (static_cast<uintptr_t>(high) << 32) | low;
    Warp &warp = *reinterpret_cast<Warp *>(address);
    Lane &lane = warp.lane_[warp.current_];
    warp.body_(warp.current_);
    lane.running = false;
    swapcontext(&lane.context, &warp.scheduler_);
  }

  void start(unsigned i) {
    Lane &lane = lane_[i];
    if (!lane.stack) {
      lane.stack = std::make_unique<char[]>(kStackBytes);
    }
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStackBytes;
    lane.context.uc_link = nullptr;
    lane.running = true;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&lane.context, reinterpret_cast<void (*)()>(&Warp::enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
  }

  bool resume(unsigned i) {
    Lane &lane = lane_[i];
    if (lane.running) {
      swapcontext(&scheduler_, &lane.context);
      lane.index = threadIdx;
    }
    return lane.running;
  }

  std::function<void(unsigned)> body_;
  ucontext_t scheduler_;
  std::vector<Lane> lane_;
  unsigned lanes_ = 0, current_ = 0;
};

inline thread_local Warp *current_warp = nullptr;
inline thread_local unsigned char *shared_memory = nullptr;

template <typename Kernel> void run_block(dim3 block, bool cooperative, const Kernel &kernel) {
  const unsigned threads = block.x * block.y * block.z;
  const auto thread = [&](unsigned number) {
    threadIdx = dim3(number % block.x, number / block.x % block.y, number / (block.x * block.y));
    kernel();
  };
  if (!cooperative) {
    for (unsigned number = 0; number < threads; ++number) {
      thread(number);
    }
    return;
  }
  static thread_local Warp warp;
  current_warp = &warp;
  for (unsigned first = 0; first < threads; first += kWarp) {
    warp.run(threads - first < kWarp ? threads - first : kWarp, [&](unsigned lane) { thread(first + lane); });
  }
  current_warp = nullptr;
}

template <typename Kernel>
void launch(dim3 grid, dim3 block, size_t shared_bytes, bool cooperative, const Kernel &kernel) {
  if (block.x * block.y * block.z > 1024 || grid.y != 1 || grid.z != 1) {
    throw std::runtime_error("CUDA: invalid configuration argument (cudaErrorInvalidConfiguration)");
  }
#pragma omp parallel
  {
    std::vector<uint64_t> shared(shared_bytes / sizeof(uint64_t) + 3); // 16-byte aligned within
    shared_memory = reinterpret_cast<unsigned char *>((reinterpret_cast<uintptr_t>(shared.data()) + 15) / 16 * 16);
    gridDim = grid;
    blockDim = block;
#pragma omp for schedule(dynamic)
    for (int64_t number = 0; number < static_cast<int64_t>(grid.x); ++number) {
      blockIdx = dim3(static_cast<unsigned>(number));
      run_block(block, cooperative, kernel);
    }
  }
}

} // namespace emulated

inline void __syncwarp() { emulated::current_warp->meet(); }

template <typename T> T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  emulated::Warp &warp = *emulated::current_warp;
  return warp.exchange(value, warp.lane() ^ static_cast<unsigned>(lane_mask));
}
