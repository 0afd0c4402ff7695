// Launch geometry and error checks of the CUDA build. Errors are thrown; nothing prints or exits.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "hpcgnn/base/execution.h"
#include "hpcgnn/base/platform.h"

namespace hpcgnn {

constexpr int kBlockThreads = 256;
constexpr int kWarpThreads = 32;

inline cudaStream_t handle_of(Stream stream) { return reinterpret_cast<cudaStream_t>(stream.handle); }

inline void check(cudaError_t status) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) +
                             ")");
  }
}

// The only place that launches. Threads of a cooperative kernel talk to each other within their warp.
template <bool cooperative = false, typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
            Arguments... arguments) {
#if defined(HPCGNN_FOR_GPU)
  kernel<<<grid, block, shared_bytes, handle_of(stream)>>>(arguments...);
#else
  emulated::launch(grid, block, shared_bytes, cooperative, [&] { kernel(arguments...); });
#endif
  check(cudaGetLastError());
}

// A block's dynamic shared memory.
__device__ inline unsigned char *shared_memory() {
#if defined(HPCGNN_FOR_GPU)
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#else
  return emulated::shared_memory;
#endif
}

// One thread an entry.
__device__ inline int64_t entry_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

template <typename... Parameters, typename... Arguments>
void launch_entries(void (*kernel)(Parameters...), int64_t n, Stream stream, Arguments... arguments) {
  if (n > 0) {
    const unsigned blocks = static_cast<unsigned>((n + kBlockThreads - 1) / kBlockThreads);
    launch(kernel, blocks, kBlockThreads, 0, stream, arguments...);
  }
}

// A block has blockDim.y rows; the blockDim.x threads of a row walk its columns together (coalesced, no division).
__device__ inline int64_t row_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }

// Threads a row: a power of two, no more than it has columns to fill (at least 1) or than `limit`.
inline unsigned row_threads(int64_t width, int limit) {
  unsigned threads = 1;
  while (threads < width && threads < static_cast<unsigned>(limit)) {
    threads *= 2;
  }
  return threads;
}

template <typename... Parameters, typename... Arguments>
void launch_rows(void (*kernel)(Parameters...), int64_t rows, int64_t width, int limit, Stream stream,
                 Arguments... arguments) {
  if (rows > 0 && width > 0) {
    const unsigned threads = row_threads(width, limit);
    const dim3 block(threads, kBlockThreads / threads);
    const unsigned blocks = static_cast<unsigned>((rows + block.y - 1) / block.y);
    launch(kernel, blocks, block, 0, stream, arguments...);
  }
}

} // namespace hpcgnn
