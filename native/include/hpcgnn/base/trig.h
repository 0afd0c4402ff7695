// Sine and cosine of a double phase, reduced in double, evaluated in Real: exact to rounding for phases up to about
// 1e9, and within [-1, 1] up to 1e30; without branches, so that loops over them vectorise. Polynomials are the usual
// minimax ones on [-pi/4, pi/4].
#pragma once

#include <cmath>

#include "hpcgnn/base/platform.h"

namespace hpcgnn {

template <typename Real> struct SineCosine {
  Real sine;
  Real cosine;
};

// A phase as quarter turns (modulo 4) and a rest in [-pi/4, pi/4].
template <typename Real> struct Reduced {
  Real rest;
  int32_t quadrant;
};

// Of phases up to about 1e15: from there on the rounded product is turns away.
template <typename Real> HPCGNN_HD Reduced<Real> reduce_once(double phase) {
  const double half_pi_high = 1.57079632679489655800e+00, half_pi_low = 6.12323399573676603587e-17;
  const double quarter = rint(phase * 6.36619772367581382433e-01);
  const double rest = fma(-quarter, half_pi_low, fma(-quarter, half_pi_high, phase));
  return {static_cast<Real>(rest), static_cast<int32_t>(quarter - 4.0 * floor(0.25 * quarter))};
}

template <typename Real> HPCGNN_HD Reduced<Real> reduce_phase(double phase) {
  const Reduced<double> reduced = reduce_once<double>(phase);
  if (fabs(reduced.rest) <= 1.0) {
    return {static_cast<Real>(reduced.rest), reduced.quadrant};
  }
  const Reduced<Real> again = reduce_once<Real>(reduced.rest);
  return {again.rest, reduced.quadrant + again.quadrant};
}

template <typename Real> HPCGNN_HD SineCosine<Real> sine_cosine_reduced(Real r, int32_t quadrant) {
  const Real z = r * r;
  Real s = static_cast<Real>(2.75573137070700676789e-06), c = static_cast<Real>(-2.75573143513906633035e-07);
  if (sizeof(Real) == 8) {
    s += z * (static_cast<Real>(-2.50507602534068634195e-08) + z * static_cast<Real>(1.58969099521155010221e-10));
    c += z * (static_cast<Real>(2.08757232129817482790e-09) + z * static_cast<Real>(-1.13596475577881948265e-11));
  }
  s = static_cast<Real>(-1.98412698298579493134e-04) + z * s;
  s = static_cast<Real>(8.33333333332248946124e-03) + z * s;
  s = static_cast<Real>(-1.66666666666666324348e-01) + z * s;
  s = r + r * z * s;
  c = static_cast<Real>(2.48015872894767294178e-05) + z * c;
  c = static_cast<Real>(-1.38888888888741095749e-03) + z * c;
  c = static_cast<Real>(4.16666666666666019037e-02) + z * c;
  c = static_cast<Real>(1) + z * (static_cast<Real>(-0.5) + z * c);
  const bool swap = (quadrant & 1) != 0;
  const Real sine = swap ? c : s;
  const Real cosine = swap ? s : c;
  return {(quadrant & 2) ? -sine : sine, ((quadrant + 1) & 2) ? -cosine : cosine};
}

// cosine[j] (and sine[j] when not null) of time * frequency[j] + phase[j]. Two loops, one in double and one in Real:
// each vectorises, together they would not.
template <typename Real>
HPCGNN_HD void encode_row(double time, const double *frequency, const double *phase, int32_t width, Real *cosine,
                          Real *sine) {
  constexpr int32_t kChunk = 128;
  const bool is_long = fabs(time) > 1e11; // else phases are below 1e15, with frequencies up to 1e4
  Real rest[kChunk];
  int32_t quadrant[kChunk];
  for (int32_t begin = 0; begin < width; begin += kChunk) {
    const int32_t size = width - begin < kChunk ? width - begin : kChunk;
    for (int32_t j = 0; !is_long && j < size; ++j) {
      const Reduced<Real> reduced = reduce_once<Real>(time * frequency[begin + j] + phase[begin + j]);
      rest[j] = reduced.rest;
      quadrant[j] = reduced.quadrant;
    }
    for (int32_t j = 0; is_long && j < size; ++j) {
      const Reduced<Real> reduced = reduce_phase<Real>(time * frequency[begin + j] + phase[begin + j]);
      rest[j] = reduced.rest;
      quadrant[j] = reduced.quadrant;
    }
    if (sine == nullptr) {
      for (int32_t j = 0; j < size; ++j) {
        cosine[begin + j] = sine_cosine_reduced(rest[j], quadrant[j]).cosine;
      }
    } else {
      for (int32_t j = 0; j < size; ++j) {
        const SineCosine<Real> value = sine_cosine_reduced(rest[j], quadrant[j]);
        cosine[begin + j] = value.cosine;
        sine[begin + j] = value.sine;
      }
    }
  }
}

} // namespace hpcgnn
