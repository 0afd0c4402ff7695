// One register of Real numbers under one name: AVX-512, AVX2 or NEON intrinsics where the build has them, else the
// compiler's vector extension. Multiply-adds are asked for explicitly: the build forbids the compiler to contract.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hpcgnn::simd {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <typename Real> struct Traits;
template <> struct Traits<float> {
  typedef float Vector __attribute__((vector_size(kBytes)));
};
template <> struct Traits<double> {
  typedef double Vector __attribute__((vector_size(kBytes)));
};

template <typename Real> using Vector = typename Traits<Real>::Vector;
template <typename Real> constexpr int kLanes = kBytes / static_cast<int>(sizeof(Real));

// The number of whole registers that hold `width` numbers.
template <typename Real> constexpr int64_t registers(int64_t width) {
  return (width + kLanes<Real> - 1) / kLanes<Real>;
}
template <typename Real> constexpr int64_t padded(int64_t width) { return registers<Real>(width) * kLanes<Real>; }

template <typename Real> inline Vector<Real> load(const Real *from) {
  Vector<Real> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename Real> inline void store(Real *to, Vector<Real> value) { std::memcpy(to, &value, sizeof value); }
template <typename Real> inline Vector<Real> broadcast(Real value) { return value - Vector<Real>{}; }

// The first `count` lanes; others are 0, and their memory is not touched.
template <typename Real> inline Vector<Real> load_first(const Real *from, int count) {
  Vector<Real> value{};
  for (int lane = 0; lane < count; ++lane) {
    value[lane] = from[lane];
  }
  return value;
}
template <typename Real> inline void store_first(Real *to, Vector<Real> value, int count) {
  for (int lane = 0; lane < count; ++lane) {
    to[lane] = value[lane];
  }
}

// The sum of `Lanes` numbers in registers, by halves.
template <typename Real, int Lanes> inline Real sum_of(const Real *lanes) {
  if constexpr (Lanes == 1) {
    return lanes[0];
  } else {
    typedef Real Half __attribute__((vector_size(Lanes / 2 * sizeof(Real))));
    Half low, high;
    std::memcpy(&low, lanes, sizeof low);
    std::memcpy(&high, lanes + Lanes / 2, sizeof high);
    low += high;
    Real halves[Lanes / 2];
    std::memcpy(halves, &low, sizeof low);
    return sum_of<Real, Lanes / 2>(halves);
  }
}

template <typename Real> inline Real sum(Vector<Real> value) {
  Real lanes[kLanes<Real>];
  store(lanes, value);
  return sum_of<Real, kLanes<Real>>(lanes);
}

#if defined(__AVX512F__)
inline Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
  return (Vector<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
inline Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
  return (Vector<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
template <> inline Vector<float> load_first(const float *from, int count) {
  return (Vector<float>)_mm512_maskz_loadu_ps(first_lanes(count), from);
}
template <> inline Vector<double> load_first(const double *from, int count) {
  return (Vector<double>)_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(count)), from);
}
template <> inline void store_first(float *to, Vector<float> value, int count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)value);
}
template <> inline void store_first(double *to, Vector<double> value, int count) {
  _mm512_mask_storeu_pd(to, static_cast<__mmask8>(first_lanes(count)), (__m512d)value);
}
#elif defined(__AVX2__) && defined(__FMA__)
inline Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
  return (Vector<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
inline Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
  return (Vector<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(__aarch64__)
inline Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
  return (Vector<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
inline Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
  return (Vector<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
template <typename V> inline V multiply_add(V a, V b, V c) { return a * b + c; }
#endif

} // namespace hpcgnn::simd
