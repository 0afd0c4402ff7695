// One register of 32-bit unsigned integers, and Philox (philox.h) on as many counters as it has lanes: bit for bit the
// same numbers.
#pragma once

#include "hpcgnn/base/simd.h"
#include "hpcgnn/random.h"

namespace hpcgnn::simd {

typedef uint32_t U32 __attribute__((vector_size(kBytes)));
typedef uint64_t U64 __attribute__((vector_size(kBytes)));

constexpr int kLanes32 = kBytes / 4;

inline U32 load_lanes(const uint32_t *from) {
  U32 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The 64-bit products of the lanes.
struct Product32 {
  U32 high, low;
};

inline Product32 multiply(U32 a, U32 b) {
  const U64 wide_a = (U64)a, wide_b = (U64)b, high_a = wide_a >> 32, high_b = wide_b >> 32;
#if defined(__AVX512F__)
  // The masked form, all lanes wanted: GCC 12 warns of the other's undefined operand.
  const U64 even = (U64)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
  const U64 odd = (U64)_mm512_maskz_mul_epu32(0xFF, (__m512i)high_a, (__m512i)high_b);
  return {(U32)_mm512_mask_blend_epi32(0xAAAA, (__m512i)(even >> 32), (__m512i)odd),
          (U32)_mm512_mask_blend_epi32(0xAAAA, (__m512i)even, (__m512i)(odd << 32))};
#else
#if defined(__AVX2__) && defined(__FMA__)
  const U64 even = (U64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
  const U64 odd = (U64)_mm256_mul_epu32((__m256i)high_a, (__m256i)high_b);
#else
  const U64 even = (wide_a & 0xFFFFFFFFu) * (wide_b & 0xFFFFFFFFu), odd = high_a * high_b;
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "the even lanes are taken to be the low halves"
#endif
  return {(U32)((even >> 32) | (odd & ~0xFFFFFFFFull)), (U32)((even & 0xFFFFFFFFull) | (odd << 32))};
#endif
}

// Whether any lane of a comparison holds.
inline bool any_lane(U32 mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  const U64 wide = (U64)mask;
  uint64_t all = 0;
  for (int i = 0; i < kBytes / 8; ++i) {
    all |= wide[i];
  }
  return all != 0;
#endif
}

struct LaneBlock {
  U32 word[4];
};

// Block `block` of every lane's identity, of which low and high are bits 0..31 and 32..47; last: word 3 of every lane's
// counter.
inline LaneBlock philox(const RandomContext &context, U32 low, U32 high, U32 last, uint32_t block) {
  const RandomCounter shared = random_counter(context, 0, block);
  const RandomKey key = random_key(context);
  const U32 zero{}, factor0 = zero + 0xD2511F53u, factor1 = zero + 0xCD9E8D57u;
  U32 c0 = low, c1 = high | shared.word[1], c2 = zero + shared.word[2], c3 = last;
  uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    const Product32 product0 = multiply(factor0, c0), product1 = multiply(factor1, c2);
    c0 = product1.high ^ c1 ^ k0;
    c2 = product0.high ^ c3 ^ k1;
    c1 = product1.low;
    c3 = product0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

} // namespace hpcgnn::simd
