// The CUDA runtime's names for AMD's HIP: what the kernels in native/cuda use of it, and no more.
#pragma once

#include <hip/hip_runtime.h>

using cudaStream_t = hipStream_t;
using cudaError_t = hipError_t;

constexpr cudaError_t cudaSuccess = hipSuccess;

inline cudaError_t cudaGetLastError() { return hipGetLastError(); }
inline const char *cudaGetErrorString(cudaError_t status) { return hipGetErrorString(status); }
inline const char *cudaGetErrorName(cudaError_t status) { return hipGetErrorName(status); }

inline cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
  return hipMemsetAsync(target, value, bytes, stream);
}

// A wavefront has 64 threads, or 32: the kernels' warps of 32 are halves of it, which exchange values among themselves.
template <typename T> __device__ T __shfl_xor_sync(unsigned, T value, int step) { return __shfl_xor(value, step, 32); }

// Threads of a wavefront run in step: what is left is to finish their writes, and to keep the compiler's order.
__device__ inline void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
