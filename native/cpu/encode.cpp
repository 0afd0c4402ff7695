// Functional time encoding cos(w dt + b) (Xu et al., Inductive representation learning on temporal graphs, 2020) on the
// CPU.
#include "hpcgnn/encode.h"

namespace hpcgnn {

template <typename Real>
void time_encode(const int64_t *dt, int64_t n, const double *frequency, const double *phase, int64_t width,
                 Real *cosine, Real *sine, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n * width > (1 << 14))
  for (int64_t i = 0; i < n; ++i) {
    encode_row(static_cast<double>(dt[i]), frequency, phase, static_cast<int32_t>(width), cosine + i * width,
               sine == nullptr ? nullptr : sine + i * width);
  }
}

template void time_encode<float>(const int64_t *, int64_t, const double *, const double *, int64_t, float *, float *,
                                 int);
template void time_encode<double>(const int64_t *, int64_t, const double *, const double *, int64_t, double *, double *,
                                  int);

} // namespace hpcgnn
