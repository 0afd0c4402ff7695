// Scores of links and their loss on the CPU. Forward and backward are one parallel region each: rows go through the
// layer in blocks that stay in the cache. Forward returns an object with what backward needs. Gradients of weights are
// added to one array, in the order given here. Matrices are contiguous rows.
#pragma once

#include <memory>

#include "hpcgnn/workspace.h"

namespace hpcgnn {

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

} // namespace hpcgnn
