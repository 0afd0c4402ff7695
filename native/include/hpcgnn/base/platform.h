// What every element function needs to compile for the host and for the device.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HPCGNN_HD __host__ __device__ inline
#else
#define HPCGNN_HD inline
#endif
