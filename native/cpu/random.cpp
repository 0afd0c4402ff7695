// Keyed random integers and dropout masks on the CPU.
#include "hpcgnn/random.h"

#include <algorithm>

namespace hpcgnn {

void random_integers(const RandomContext &context, const int64_t *identity, int64_t n, int32_t slots, uint32_t bound,
                     int64_t *out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    for (int32_t slot = 0; slot < slots; ++slot) {
      out[i * slots + slot] = random_below(context, static_cast<uint64_t>(identity[i]), slot, bound);
    }
  }
}

template <typename Real>
void dropout_mask(const RandomContext &context, const int64_t *identity, int64_t n, int32_t columns, double p,
                  Real *mask, int threads) {
  const uint32_t threshold = dropout_threshold(p);
  const Real scale = static_cast<Real>(1.0 / (1.0 - p));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < n; ++i) {
    std::fill_n(mask + i * columns, columns, Real(1));
    dropout_row(context, static_cast<uint64_t>(identity[i]), columns, threshold, scale, mask + i * columns);
  }
}

template void dropout_mask<float>(const RandomContext &, const int64_t *, int64_t, int32_t, double, float *, int);
template void dropout_mask<double>(const RandomContext &, const int64_t *, int64_t, int32_t, double, double *, int);

} // namespace hpcgnn
