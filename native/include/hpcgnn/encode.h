// Time encodings of rows on the host, a register's worth of columns at a time: frequencies and phases are padded, so
// that no loop has a rest.
#pragma once

#include <algorithm>
#include <cmath>

#include "hpcgnn/base/simd.h"
#include "hpcgnn/base/trig.h"
#include "hpcgnn/workspace.h"

namespace hpcgnn {

// a b + c, in one rounding where the processor can.
template <typename Real> inline Real multiply_add(Real a, Real b, Real c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// cos(2 pi turns) for |turns| <= 1/2, as the sine of what is missing to a quarter turn. Least squares at Chebyshev's
// points; the absolute error, 2e-7, is that of rounding `turns`.
inline float cosine_of_turns(float turns) {
  const float y = 0.25f - std::fabs(turns), z = y * y;
  float sum = multiply_add(-14.348415f, z, 42.002054f);
  sum = multiply_add(sum, z, -76.703806f);
  sum = multiply_add(sum, z, 81.605214f);
  sum = multiply_add(sum, z, -41.341702f);
  return y * multiply_add(sum, z, 6.2831853f);
}

class TimeTable {
public:
  static constexpr int kChunk = 16;

  TimeTable(const double *frequency, const double *phase, int64_t width)
      : width_((width + kChunk - 1) / kChunk * kChunk), table_(4 * width_) {
    const double turns = 0.15915494309189533577; // 1 / (2 pi)
    for (int64_t j = 0; j < width_; ++j) {
      column(0)[j] = j < width ? frequency[j] : 0.0;
      column(1)[j] = j < width ? phase[j] : 0.0;
      column(2)[j] = turns * column(0)[j];
      column(3)[j] = turns * column(1)[j];
    }
  }

  // Columns that encode() writes: the width, rounded up.
  int64_t width() const { return width_; }

  // cos(w dt + b). Phases are formed and whole turns go in double.
  void encode(int64_t dt, float *row) const {
    const double time = static_cast<double>(dt), *frequency = column(2), *phase = column(3);
    for (int64_t begin = 0; begin < width_; begin += kChunk) {
      float turns[kChunk];
      for (int j = 0; j < kChunk; ++j) {
        const double turn = multiply_add(time, frequency[begin + j], phase[begin + j]);
        turns[j] = static_cast<float>(turn - rint(turn));
      }
      for (int j = 0; j < kChunk; ++j) {
        row[begin + j] = cosine_of_turns(turns[j]);
      }
    }
  }

  void encode(int64_t dt, double *row) const { encode<double>(dt, row, nullptr); }

  // Cosines, and sines unless null.
  template <typename Real> void encode(int64_t dt, Real *cosine, Real *sine) const {
    encode_row(static_cast<double>(dt), column(0), column(1), static_cast<int32_t>(width_), cosine, sine);
  }

private:
  // Frequency and phase; the same in turns.
  double *column(int i) const { return table_.data() + i * width_; }

  int64_t width_;
  Buffer<double> table_;
};

// cosine [n, width] of dt * frequency + phase; sine likewise unless null. Exact to rounding for large times.
template <typename Real>
void time_encode(const int64_t *dt, int64_t n, const double *frequency, const double *phase, int64_t width,
                 Real *cosine, Real *sine, int threads);

} // namespace hpcgnn
