// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011) and the one layout
// of its counter. A random number is a pure function of what it is for, never of rank, thread or arrival order.
//
//   key[0]      seed, bits 0..31
//   key[1]      seed, bits 32..55, in the upper 24 bits | stream in the lower 8 bits
//   counter[0]  identity, bits 0..31             (row id of the node or event, below 2^48)
//   counter[1]  identity, bits 32..47, lower half | slot / 4, upper half
//   counter[2]  global step
//   counter[3]  epoch (16 bits) | hop (4 bits) | relation, role or layer (12 bits)
//
// Slot s uses word s % 4 of its block. A draw that unbiased reduction rejects is repeated with key[1] + attempt *
// 0x9E3779B9.
#pragma once

#include "hpcgnn/base/execution.h"
#include "hpcgnn/base/platform.h"

namespace hpcgnn {

struct RandomKey {
  uint32_t word[2];
};

struct RandomCounter {
  uint32_t word[4];
};

struct RandomBlock {
  uint32_t word[4];
};

// The part of key and counter that one kernel call has in common.
struct RandomContext {
  uint64_t seed;
  uint32_t stream;
  uint32_t step;
  uint32_t epoch;
  uint32_t hop;
  uint32_t relation;
};

HPCGNN_HD RandomKey random_key(const RandomContext &context) {
  return {{static_cast<uint32_t>(context.seed),
           (static_cast<uint32_t>(context.seed >> 32) << 8) | (context.stream & 0xFFu)}};
}

HPCGNN_HD RandomCounter random_counter(const RandomContext &context, uint64_t identity, uint32_t block) {
  return {{static_cast<uint32_t>(identity), static_cast<uint32_t>((identity >> 32) & 0xFFFFu) | (block << 16),
           context.step,
           (context.epoch & 0xFFFFu) | ((context.hop & 0xFu) << 16) | ((context.relation & 0xFFFu) << 20)}};
}

HPCGNN_HD RandomBlock philox(RandomCounter counter, RandomKey key) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t product1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    c0 = next0;
    c2 = next2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// An unbiased integer in [0, bound) for one slot, 0 < bound <= 2^32 - 1 (Lemire: Fast random integer generation in an
// interval; ACM TOMACS 2019).
HPCGNN_HD uint32_t random_below(const RandomContext &context, uint64_t identity, uint32_t slot, uint32_t bound) {
  const RandomCounter counter = random_counter(context, identity, slot >> 2);
  RandomKey key = random_key(context);
  uint64_t product = static_cast<uint64_t>(philox(counter, key).word[slot & 3]) * bound;
  if (static_cast<uint32_t>(product) < bound) {
    const uint32_t threshold = (0u - bound) % bound;
    while (static_cast<uint32_t>(product) < threshold) {
      key.word[1] += 0x9E3779B9u;
      product = static_cast<uint64_t>(philox(counter, key).word[slot & 3]) * bound;
    }
  }
  return static_cast<uint32_t>(product >> 32);
}

struct WideProduct {
  uint64_t high, low;
};

HPCGNN_HD WideProduct multiply_wide(uint64_t a, uint64_t b) {
#if defined(HPCGNN_ON_GPU)
  return {__umul64hi(a, b), a * b};
#else
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
#endif
}

// random_below for bounds up to 2^64 - 1. Slot s uses two words, 2 (s % 2) and the next, of block s / 2.
HPCGNN_HD uint64_t random_below_wide(const RandomContext &context, uint64_t identity, uint32_t slot, uint64_t bound) {
  const RandomCounter counter = random_counter(context, identity, slot >> 1);
  RandomKey key = random_key(context);
  const uint64_t threshold = (0ull - bound) % bound;
  for (;;) {
    const RandomBlock block = philox(counter, key);
    const uint64_t word = static_cast<uint64_t>(block.word[2 * (slot & 1)]) << 32 | block.word[2 * (slot & 1) + 1];
    const WideProduct product = multiply_wide(word, bound);
    if (product.low >= threshold) {
      return product.high;
    }
    key.word[1] += 0x9E3779B9u;
  }
}

// Keyed dropout: whether an element is kept depends on (seed, step, epoch, layer, row identity, column) only. Elements
// are dropped when their random word is below this.
HPCGNN_HD uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Columns 4 * block .. 4 * block + 3 of one row.
template <typename Real>
HPCGNN_HD void dropout_block(const RandomContext &context, uint64_t identity, int32_t block, int32_t columns,
                             uint32_t threshold, Real scale, Real *row) {
  const RandomBlock words =
      philox(random_counter(context, identity, static_cast<uint32_t>(block)), random_key(context));
  for (int32_t lane = 0; lane < 4 && 4 * block + lane < columns; ++lane) {
    row[4 * block + lane] = words.word[lane] < threshold ? static_cast<Real>(0) : scale;
  }
}

// All columns of one row times their multipliers: the same numbers, many blocks at a time, so that loops vectorise.
template <typename Real>
inline void dropout_row(const RandomContext &context, uint64_t identity, int32_t columns, uint32_t threshold,
                        Real scale, Real *row) {
  constexpr int32_t kBlocks = 16;
  const RandomKey key = random_key(context);
  for (int32_t begin = 0; begin < columns; begin += 4 * kBlocks) {
    uint32_t word[4 * kBlocks];
#pragma omp simd
    for (int32_t block = 0; block < kBlocks; ++block) {
      const RandomBlock words =
          philox(random_counter(context, identity, static_cast<uint32_t>(begin / 4 + block)), key);
      word[4 * block] = words.word[0];
      word[4 * block + 1] = words.word[1];
      word[4 * block + 2] = words.word[2];
      word[4 * block + 3] = words.word[3];
    }
    const int32_t size = columns - begin < 4 * kBlocks ? columns - begin : 4 * kBlocks;
#pragma omp simd
    for (int32_t j = 0; j < size; ++j) {
      row[begin + j] *= word[j] < threshold ? static_cast<Real>(0) : scale;
    }
  }
}

// out [n, slots] in [0, bound).
void random_integers(const RandomContext &context, const int64_t *identity, int64_t n, int32_t slots, uint32_t bound,
                     int64_t *out, Execution execution);
// mask [n, columns] of 0 or 1 / (1 - p).
template <typename Real>
void dropout_mask(const RandomContext &context, const int64_t *identity, int64_t n, int32_t columns, double p,
                  Real *mask, Execution execution);

} // namespace hpcgnn
