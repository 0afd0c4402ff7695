// Write-back into node memory on the CPU.
#pragma once

#include <cstdint>

namespace hpcgnn {

// Node memory of n nodes with one mail each: state [n, D], mail [n, M], updated, mailed, delivered [n].
template <typename Real> struct MemoryTable {
  int64_t state_width, mail_width;
  Real *state, *mail;
  int64_t *updated, *mailed, *delivered;
};

// What replaces state and mail of unique rows [m]: states [., D] at place [m] (null: at 0 .. m - 1), and mails of times
// [m], which are the new state followed by rest [m, M - D].
template <typename Real> struct MemoryWrite {
  int64_t count;
  const int64_t *rows, *place;
  const Real *state, *rest;
  const int64_t *time;
};

// The state's time becomes that of the mail it has consumed; without one, that of the new mail.
template <typename Real>
void replace_memory(const MemoryTable<Real> &table, const MemoryWrite<Real> &write, int threads);

} // namespace hpcgnn
