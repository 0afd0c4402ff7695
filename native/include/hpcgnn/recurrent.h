// The recurrent update of node memory on the CPU. Forward and backward are one parallel region each: rows go through
// the layer in blocks that stay in the cache. Forward returns an object with what backward needs. Gradients of weights
// are added to one array, in the order given here. Matrices are contiguous rows.
#pragma once

#include <algorithm>
#include <memory>

#include "hpcgnn/workspace.h"

namespace hpcgnn {

// A recurrent cell over (mail, encoded time since the last update) of the rows that have mail; other rows keep their
// state. gates: 3 for a gated recurrent unit (reset, update, candidate), 1 for a plain tanh cell. r rows, state D,
// mail M, time T. Where the mail begins with the state, gates that only add both products make one of them.
template <typename Real> struct Recurrent {
  int64_t rows;
  int32_t gates, state_width, mail_width, time_width;
  bool state_first;     // every mail begins with its row's state
  const int64_t *index; // [r] rows of the tables, or null: the first r
  const Real *state, *mail;
  const int64_t *mailed, *updated;   // updated null: mailed holds the differences
  const int64_t *delivered;          // rows with more than 0 have mail
  const double *frequency, *phase;   // [T]
  const Real *weight_ih, *weight_hh; // [gates D, M + T], [gates D, D]
  const Real *bias_ih, *bias_hh;     // [gates D]

  int64_t in_width() const { return mail_width + time_width; }
  int64_t gate_width() const { return int64_t(gates) * state_width; }
  // Gates that add both products, and the candidate, which weighs the state's.
  int64_t added_width() const { return gate_width() - own_width(); }
  int64_t own_width() const { return gates == 3 ? state_width : 0; }
  // Where the state lies in a row [mail | time | state], or [mail | time] where the mail begins with it.
  int64_t state_at() const { return state_first ? 0 : in_width(); }
  int64_t row_width() const { return in_width() + (state_first ? 0 : state_width); }
  int64_t row(int64_t i) const { return index == nullptr ? i : index[i]; }
  bool has_mail(int64_t i) const { return delivered[row(i)] > 0; }
  int64_t dt(int64_t row) const { return mailed[row] - (updated == nullptr ? 0 : updated[row]); }
  // Whether a row's mail begins with a state of zeros, which it has had for no time.
  bool is_first(int64_t i) const {
    const Real *own = mail + row(i) * mail_width;
    return state_first && dt(row(i)) == 0 && std::all_of(own, own + state_width, [](Real x) { return x == Real(0); });
  }
  // weight_ih, weight_hh, bias_ih, bias_hh, phase (if wanted)
  int64_t gradient_size(bool with_phase) const {
    return gate_width() * (in_width() + state_width + 2) + (with_phase ? time_width : 0);
  }
};

// Rows whose mail is their first have no state yet and no time since it: their products leave both out.
template <typename Real> struct RecurrentSaved {
  int64_t count = 0;     // rows with mail
  int64_t whole = 0;     // of these, rows whose products leave out nothing; they come first
  Buffer<int64_t> place; // [count] among the r rows
  Buffer<int64_t> dt;    // [count]
  RowBuffer<Real> row;   // [count, row_width] what went in
  RowBuffer<Real> gate;  // [count, 4 D] reset, update, candidate, the state's part of the candidate; or [count, D] tanh
};

// out [r, D].
template <typename Real>
std::unique_ptr<RecurrentSaved<Real>> recurrent_forward(const Recurrent<Real> &cell, Real *out, int threads);
// gradient [r, D]; grad_weights [gradient_size].
template <typename Real>
void recurrent_backward(const Recurrent<Real> &cell, const RecurrentSaved<Real> &saved, const Real *gradient,
                        bool with_phase, Real *grad_weights, int threads);

} // namespace hpcgnn
