// Memory of the kernels, kept between calls: a step allocates nothing once its sizes have been seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hpcgnn/base/gemm.h"

namespace hpcgnn {

// Thread-safe. The memory is at least `bytes` long, aligned to cache lines, its contents arbitrary; 256 bytes behind
// its end are readable. take_memory sets `bytes` to what it really is, which give_memory wants to know.
void *take_memory(size_t &bytes);
void give_memory(void *memory, size_t bytes);

template <typename T> class Buffer {
public:
  Buffer() = default;
  explicit Buffer(int64_t count)
      : bytes_(static_cast<size_t>(count) * sizeof(T)), data_(static_cast<T *>(take_memory(bytes_))) {}
  Buffer(Buffer &&other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Buffer &operator=(Buffer &&other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) {
      give_memory(data_, bytes_);
    }
  }
  T *data() const { return data_; }

private:
  size_t bytes_ = 0;
  T *data_ = nullptr;
};

// Rows in memory of the workspace, each padded to whole registers with zeros; by one more where many rows would share
// few sets of the first cache. Products read the padding: what lay in the memory before may be denormal numbers, with
// which a product takes 50 times as long.
template <typename Real> struct RowBuffer {
  int64_t stride = 0;
  Buffer<Real> memory;
  RowBuffer() = default;
  RowBuffer(int64_t rows, int64_t width)
      : stride(simd::padded<Real>(width) + (simd::padded<Real>(width) * sizeof(Real) % 1024 ? 0 : simd::kLanes<Real>)),
        memory(rows * stride) {
    for (int64_t row = 0; row < rows; ++row) {
      Real *end = memory.data() + row * stride;
      std::fill(end + width, end + simd::padded<Real>(width), Real(0));
    }
  }
  gemm::Rows<Real> rows() const { return {memory.data(), stride}; }
};

} // namespace hpcgnn
