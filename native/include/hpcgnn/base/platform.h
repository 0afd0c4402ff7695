// What every element function needs to compile for the host and for the device.
#pragma once

#include <cstdint>

// Compiled for a GPU as well: by nvcc, or by AMD's hipcc.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define HPCGNN_FOR_GPU 1
#define HPCGNN_HD __host__ __device__ inline
#else
#define HPCGNN_HD inline
#endif

// In the pass of the compiler whose code the GPU runs.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define HPCGNN_ON_GPU 1
#endif
