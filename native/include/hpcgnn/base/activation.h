// Exponential, logistic function and hyperbolic tangent without branches or table, so that loops over them vectorise.
// Relative error of the exponential about 1e-7 in float and 1e-16 in double.
#pragma once

#include <cmath>
#include <cstring>

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

// 2^n for |n| within the normal exponents; 1 for NaN, which no integer stands for.
HPCGNN_HD float power_of_two(float n) {
  const int32_t bits = (static_cast<int32_t>(n == n ? n : 0.0f) + 127) << 23;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

HPCGNN_HD double power_of_two(double n) {
  const int64_t bits = (static_cast<int64_t>(n == n ? n : 0.0) + 1023) << 52;
  double result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// exp(x) as 2^n exp(r), |r| <= ln 2 / 2, Taylor's polynomial of degree 7 (float) or 13 (double). Clamped at |x| = 80.
template <typename Real> HPCGNN_HD Real exponential(Real x) {
  x = x < Real(-80) ? Real(-80) : (x > Real(80) ? Real(80) : x);
  const Real n = std::rint(x * Real(1.44269504088896340736));
  // ln 2 as a rounded value and what the rounding left.
  const Real ln2 = Real(6.93147180559945309417e-01);
  const Real rest = sizeof(Real) == 8 ? Real(2.31904681384629955842e-17) : Real(-1.90465429995776804525e-9);
  const Real r = std::fma(-n, rest, std::fma(-n, ln2, x));
  Real sum = Real(1) / 5040;
  if (sizeof(Real) == 8) {
    sum += r * (Real(1) / 40320 +
                r * (Real(1) / 362880 +
                     r * (Real(1) / 3628800 +
                          r * (Real(1) / 39916800 + r * (Real(1) / 479001600 + r * (Real(1) / 6227020800.0))))));
  }
  sum = std::fma(r, sum, Real(1) / 720);
  sum = std::fma(r, sum, Real(1) / 120);
  sum = std::fma(r, sum, Real(1) / 24);
  sum = std::fma(r, sum, Real(1) / 6);
  sum = std::fma(r, sum, Real(1) / 2);
  sum = std::fma(r, sum, Real(1));
  return std::fma(r, sum, Real(1)) * power_of_two(n);
}

template <typename Real> HPCGNN_HD Real logistic(Real x) { return Real(1) / (Real(1) + exponential(-x)); }

template <typename Real> HPCGNN_HD Real hyperbolic_tangent(Real x) { return Real(2) * logistic(Real(2) * x) - Real(1); }

} // namespace hpcgnn
