// Scores of links and their loss on the CPU. Forward and backward are one parallel region each. Every row goes through
// its layer once, in blocks that stay in the cache, however many pairs it is in; a pair then costs one pass over two
// rows, and backward computes what relu took again, as it is larger than all rows. Forward returns an object with what
// backward needs. Gradients of weights are added to one array, in the order given here. Matrices are contiguous rows.
#pragma once

#include <memory>

#include "hpcgnn/workspace.h"

namespace hpcgnn {

// Scores of pairs: out . relu(source s_u + bias + destination d_v) + out_bias for rows u, v of the places; k roles of b
// pairs each.
template <typename Real> struct LinkDecoder {
  int64_t roles, pairs, sources, destinations;
  int32_t width, hidden;
  const Real *source_rows, *destination_rows;      // [S, Z], [D, Z]
  const int64_t *source_place, *destination_place; // [k, b] in [0, S), [0, D)
  const Real *source, *bias, *destination;         // [O, Z], [O], [O, Z]
  const Real *out, *out_bias;                      // [O], [1]
  // source, bias, destination, out, out_bias
  int64_t gradient_size() const { return int64_t(hidden) * (2 * width + 2) + 1; }
};

template <typename Real> struct LinkDecoderSaved {
  RowBuffer<Real> source, destination; // [S, O] with the bias, [D, O]: the rows behind their layer
};

// logits [k, b].
template <typename Real>
std::unique_ptr<LinkDecoderSaved<Real>> link_decoder_forward(const LinkDecoder<Real> &decoder, Real *logits,
                                                             int threads);
// gradient [k, b]; grad_rows [S + D, Z]: of the sources, then of the destinations; grad_weights [gradient_size].
template <typename Real>
void link_decoder_backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient,
                           Real *grad_rows, Real *grad_weights, int threads);

// The loss of such scores: the sum of -log p over the first role's pairs (role 0, R = roles of the logits) plus the
// mean over the other roles of -log(1 - p), divided by `batch`. Writes its gradient [R, b].
template <typename Real>
double link_loss(const Real *logits, int64_t roles, int64_t pairs, int64_t batch, Real *gradient);

} // namespace hpcgnn
