// Keyed random integers and dropout masks on CUDA.
#include "cuda/launch.h"
#include "hpcgnn/random.h"

namespace hpcgnn {
namespace {

__global__ void integers_kernel(RandomContext context, const int64_t *identity, int64_t n, int32_t slots,
                                uint32_t bound, int64_t *out) {
  const int64_t row = row_index();
  if (row < n) {
    for (int32_t slot = threadIdx.x; slot < slots; slot += blockDim.x) {
      out[row * slots + slot] = random_below(context, static_cast<uint64_t>(identity[row]), slot, bound);
    }
  }
}

template <typename Real>
__global__ void dropout_kernel(RandomContext context, const int64_t *identity, int64_t n, int32_t columns,
                               uint32_t threshold, Real scale, Real *mask) {
  const int64_t row = row_index();
  if (row < n) {
    for (int32_t block = threadIdx.x; 4 * block < columns; block += blockDim.x) {
      dropout_block(context, static_cast<uint64_t>(identity[row]), block, columns, threshold, scale,
                    mask + row * columns);
    }
  }
}

} // namespace

void random_integers(const RandomContext &context, const int64_t *identity, int64_t n, int32_t slots, uint32_t bound,
                     int64_t *out, Stream stream) {
  launch_rows(integers_kernel, n, slots, kWarpThreads, stream, context, identity, n, slots, bound, out);
}

template <typename Real>
void dropout_mask(const RandomContext &context, const int64_t *identity, int64_t n, int32_t columns, double p,
                  Real *mask, Stream stream) {
  launch_rows(dropout_kernel<Real>, n, (columns + 3) / 4, kWarpThreads, stream, context, identity, n, columns,
              dropout_threshold(p), static_cast<Real>(1.0 / (1.0 - p)), mask);
}

template void dropout_mask<float>(const RandomContext &, const int64_t *, int64_t, int32_t, double, float *, Stream);
template void dropout_mask<double>(const RandomContext &, const int64_t *, int64_t, int32_t, double, double *, Stream);

} // namespace hpcgnn
