// How a call is executed. Operations that both builds have are declared once; each build defines them, and both return
// the same bits.
#pragma once

#include <cstdint>

namespace hpcgnn {

// A cudaStream_t as the integer that Python has of it, so that headers need no CUDA toolkit.
struct Stream {
  int64_t handle;
  Stream(int64_t handle) : handle(handle) {}
};

#if defined(HPCGNN_CUDA_BUILD)
// Calls only enqueue work on the stream: nothing allocates device memory or waits. Errors of the runtime are thrown as
// std::runtime_error.
using Execution = Stream;
#else
using Execution = int; // the number of OpenMP threads
#endif

} // namespace hpcgnn
