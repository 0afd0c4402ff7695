// Whole layers on the CPU, forward and backward in one parallel region each: rows go through a layer in blocks that
// stay in the cache. What backward needs is kept in an object that forward returns. Matrices are contiguous rows unless
// a stride is named. Gradients of weights are added to one array a layer, in the order given here.
#pragma once

#include <memory>

#include "hpcgnn/base/gemm.h"
#include "hpcgnn/philox.h"
#include "hpcgnn/workspace.h"

namespace hpcgnn::cpu {

// Rows in memory of the workspace, each padded to whole registers; by one more where many rows would share few sets of
// the first cache.
template <typename Real> struct RowBuffer {
  int64_t stride = 0;
  Buffer<Real> memory;
  RowBuffer() = default;
  RowBuffer(int64_t rows, int64_t width)
      : stride(simd::padded<Real>(width) + (simd::padded<Real>(width) * sizeof(Real) % 1024 ? 0 : simd::kLanes<Real>)),
        memory(rows * stride) {}
  gemm::Rows<Real> rows() const { return {memory.data(), stride}; }
};

// Temporal attention of N roots over K slots, H heads, merged with the root's own row, relu and layer norm. U unique
// rows of width D, edge features F, time encoding T, W = D + F + T, output Z.
template <typename Real> struct AttentionLayer {
  int64_t roots, unique;
  int32_t slots, heads, node_width, edge_width, time_width, out_width;
  const Real *node;                      // [U, D]
  const int64_t *root;                   // [N] rows of node
  const int32_t *slot, *count, *edge_of; // [N, K] rows of node, [N] how many, [N, K] rows of edge (if F > 0)
  const int64_t *dt;                     // [N, K]
  const Real *edge;                      // [., F]
  const double *frequency, *phase;       // [T]
  const Real *query_weight, *query_bias; // [Z, D + T], [Z]
  const Real *key, *value;               // [H, Z / H, W]
  const Real *merge_weight, *merge_bias; // [Z, Z + D], [Z]
  const Real *norm_weight, *norm_bias;   // [Z]
  double scale;                          // of the scores
  double eps;
  const int64_t *identity; // [N], or null: no dropout
  double dropout;
  RandomContext random;

  int64_t width() const { return node_width + edge_width + time_width; }
  int64_t query_width() const { return heads * width(); }
  // key, value, query_weight, query_bias, merge_weight, merge_bias, norm_weight, norm_bias, phase (if wanted)
  int64_t gradient_size(bool with_phase) const {
    return out_width * (2 * width() + out_width + 2 * node_width + time_width + 4) + (with_phase ? time_width : 0);
  }
};

// Queries depend on a root's own row alone, so they are formed once for each of the V different rows that are roots.
template <typename Real> struct AttentionSaved {
  int64_t owners = 0;      // V
  Buffer<int32_t> owner;   // [N] which of the V
  Buffer<int64_t> node;    // [V] row of the unique nodes
  RowBuffer<Real> own;     // [V, D + 1] own row, 1
  RowBuffer<Real> query;   // [V, H W]
  RowBuffer<Real> row;     // [N, H W] weighted sums
  RowBuffer<Real> hidden;  // [N, Z] after relu
  Buffer<Real> weight;     // [N, H, K]
  Buffer<Real> statistics; // [N, 2] mean and 1 / deviation of hidden
};

// CSR transposes of slot (order: position in [N, K]) and of root.
struct AttentionTranspose {
  const int64_t *slot_indptr, *slot_order, *root_indptr, *root_order;
};

template <typename Real>
std::unique_ptr<AttentionSaved<Real>> attention_layer_forward(const AttentionLayer<Real> &layer, Real *out,
                                                              int threads);
// grad_node [U, D]; grad_weights [gradient_size].
template <typename Real>
void attention_layer_backward(const AttentionLayer<Real> &layer, const AttentionSaved<Real> &saved,
                              const AttentionTranspose &transpose, const Real *gradient, bool with_phase,
                              Real *grad_node, Real *grad_weights, int threads);

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
  // weight_ih, weight_hh, bias_ih, bias_hh, phase (if wanted)
  int64_t gradient_size(bool with_phase) const {
    return gate_width() * (in_width() + state_width + 2) + (with_phase ? time_width : 0);
  }
};

template <typename Real> struct RecurrentSaved {
  int64_t count = 0;     // rows with mail
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

// Scores of pairs: out . relu(source e_0 + destination e_j + bias) + out_bias for roles j = 1 .. R - 1, b pairs each.
template <typename Real> struct LinkDecoder {
  int64_t roles, pairs;
  int32_t width, hidden;
  const Real *embedding;                   // [R, b, Z]
  const Real *source, *bias, *destination; // [O, Z], [O], [O, Z]
  const Real *out, *out_bias;              // [O], [1]
  // source, bias, destination, out, out_bias
  int64_t gradient_size() const { return int64_t(hidden) * (2 * width + 2) + 1; }
};

template <typename Real> struct LinkDecoderSaved {
  RowBuffer<Real> hidden; // [R - 1, b, O] after relu
};

// logits [R - 1, b].
template <typename Real>
std::unique_ptr<LinkDecoderSaved<Real>> link_decoder_forward(const LinkDecoder<Real> &decoder, Real *logits,
                                                             int threads);
// gradient [R - 1, b]; grad_embedding [R, b, Z]; grad_weights [gradient_size].
template <typename Real>
void link_decoder_backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient,
                           Real *grad_embedding, Real *grad_weights, int threads);

// The loss of such scores: the sum of -log p over the first role's pairs (role 0, R = roles of the logits) plus the
// mean over the other roles of -log(1 - p), divided by `batch`. Writes its gradient [R, b].
template <typename Real>
double link_loss(const Real *logits, int64_t roles, int64_t pairs, int64_t batch, Real *gradient);

// Node memory of n nodes with one mail each: state [n, D], mail [n, M], updated, mailed, delivered [n].
template <typename Real> struct MemoryTable {
  int64_t state_width, mail_width;
  Real *state, *mail;
  int64_t *updated, *mailed, *delivered;
};

// What replaces state and mail of unique rows [m]: states [., D] at place [m] (null: at 0 .. m - 1), and mails of times
// [m], which are the new state followed by given [m, M - D].
template <typename Real> struct MemoryWrite {
  int64_t count;
  const int64_t *rows, *place;
  const Real *state, *given;
  const int64_t *time;
};

// The state's time becomes that of the mail it has consumed; without one, that of the new mail.
template <typename Real>
void replace_memory(const MemoryTable<Real> &table, const MemoryWrite<Real> &write, int threads);

// One step of Adam (Kingma and Ba: Adam: a method for stochastic optimization, 2015) or AdamW (Loshchilov and Hutter:
// Decoupled weight decay regularization, 2019) over n parameters. step: counted from 1.
struct Adam {
  int64_t step;
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;
};
template <typename Real>
void adam_step(const Adam &adam, int64_t n, const Real *gradient, Real *parameter, Real *mean, Real *square,
               int threads);

} // namespace hpcgnn::cpu
