// The weights of a temporal attention layer as its products take them, and their gradients. A root's row [own | 1]
// meets asks [Z, D + 1] (query weight; its time difference is 0, so that the time's part is a bias) and own [Z, D + 1]
// (its part of the merge weight). The last columns are biases.
#pragma once

#include "cpu/shared/layer_parts.h"
#include "hpcgnn/attention_layer.h"
#include "hpcgnn/encode.h"

namespace hpcgnn {

// Where the gradients lie: of asks [Z, D + 1], own [Z, D + 1] and key [H, Z / H, W], summed over the different own
// rows; of value [H, Z / H, W], the merge weight's part of the values [Z, Z], the norm's and the keys' phase, summed
// over roots.
template <typename Real> struct Gradients {
  Real *asks, *own, *key, *value, *merge, *norm_weight, *norm_bias, *phase;

  Gradients(const AttentionLayer<Real> &layer, Real *at)
      : asks(at), own(asks + int64_t(layer.out_width) * (layer.node_width + 1)),
        key(own + int64_t(layer.out_width) * (layer.node_width + 1)), value(key + layer.out_width * layer.width()),
        merge(value + layer.out_width * layer.width()), norm_weight(merge + int64_t(layer.out_width) * layer.out_width),
        norm_bias(norm_weight + layer.out_width), phase(norm_bias + layer.out_width) {}
  int64_t of_owners() const { return value - asks; }
  int64_t of_roots(bool with_phase, int64_t time_width) const { return phase - value + (with_phase ? time_width : 0); }
};

template <typename Real> class AttentionWeights {
public:
  AttentionWeights(const AttentionLayer<Real> &layer, const TimeTable &table)
      : layer_(layer), now_(2, table.width()), asks_(layer.out_width, layer.node_width + 1),
        own_(layer.out_width, layer.node_width + 1), bias_(layer.out_width) {
    table.encode(0, now_.rows().at(0), now_.rows().at(1));
  }

  // Collective over the team; a barrier must follow.
  void compose(const Team &team) const {
    const int64_t depth = layer_.node_width;
    const Real *now = now_.rows().at(0), scale = static_cast<Real>(layer_.scale);
    const Range part = team.share(layer_.out_width);
    for (int64_t z = part.begin; z < part.end; ++z) {
      const Real *from = layer_.query_weight + z * query_stride();
      Real *to = asks_.rows().at(z), bias = layer_.query_bias[z];
      for (int64_t j = 0; j < depth; ++j) {
        to[j] = scale * from[j];
      }
      for (int32_t j = 0; j < layer_.time_width; ++j) {
        bias += from[depth + j] * now[j];
      }
      to[depth] = scale * bias;
      copy_row(own_.rows().at(z), layer_.merge_weight + z * merge_stride() + layer_.out_width, depth);
      own_.rows().at(z)[depth] = layer_.merge_bias[z];
    }
  }

  // Adds the gradients to those of the parameters. Collective over the team.
  void backward(const Team &team, const Gradients<Real> &from, bool with_phase, Real *gradient) const {
    const Parameters to(layer_, gradient);
    const Range part = team.share(layer_.out_width);
    for (int64_t z = part.begin; z < part.end; ++z) {
      of_row(z, from, to);
    }
    if (with_phase) {
      team.barrier();
      if (team.rank == 0) {
        phase_backward(from, to);
      }
    }
  }

  gemm::Rows<const Real> asks() const { return asks_.rows(); }
  gemm::Rows<const Real> own() const { return own_.rows(); }
  gemm::Rows<const Real> key(int64_t head) const { return {layer_.key + at(head), layer_.width()}; }
  gemm::Rows<const Real> value(int64_t head) const { return {layer_.value + at(head), layer_.width()}; }
  gemm::Rows<const Real> merge() const { return {layer_.merge_weight, merge_stride()}; }

private:
  // Where the gradients of the parameters lie.
  struct Parameters {
    Real *key, *value, *query_weight, *query_bias, *merge_weight, *merge_bias, *norm_weight, *norm_bias, *phase;

    Parameters(const AttentionLayer<Real> &layer, Real *at) {
      const int64_t out = layer.out_width;
      key = at;
      value = key + out * layer.width();
      query_weight = value + out * layer.width();
      query_bias = query_weight + out * (layer.node_width + layer.time_width);
      merge_weight = query_bias + out;
      merge_bias = merge_weight + out * (out + layer.node_width);
      norm_weight = merge_bias + out;
      norm_bias = norm_weight + out;
      phase = norm_bias + out;
    }
  };

  int64_t at(int64_t head) const { return head * layer_.head_width() * layer_.width(); }
  int64_t query_stride() const { return layer_.node_width + layer_.time_width; }
  int64_t merge_stride() const { return int64_t(layer_.out_width) + layer_.node_width; }

  // The z-th row of every weight.
  void of_row(int64_t z, const Gradients<Real> &from, const Parameters &to) const {
    const int64_t width = layer_.width(), depth = layer_.node_width, out = layer_.out_width;
    add_row(from.key + z * width, width, to.key + z * width);
    add_row(from.value + z * width, width, to.value + z * width);
    const Real *asks = from.asks + z * (depth + 1), *own = from.own + z * (depth + 1), *now = now_.rows().at(0);
    const Real scale = static_cast<Real>(layer_.scale), bias = scale * asks[depth];
    Real *query = to.query_weight + z * query_stride(), *merge = to.merge_weight + z * merge_stride();
    for (int64_t j = 0; j < depth; ++j) {
      query[j] += scale * asks[j];
    }
    for (int32_t j = 0; j < layer_.time_width; ++j) {
      query[depth + j] += bias * now[j];
    }
    to.query_bias[z] += bias;
    bias_.data()[z] = bias;
    add_row(from.merge + z * out, out, merge);
    add_row(own, depth, merge + out);
    to.merge_bias[z] += own[depth];
    to.norm_weight[z] += from.norm_weight[z];
    to.norm_bias[z] += from.norm_bias[z];
  }

  // What the keys and the query see of the phase.
  void phase_backward(const Gradients<Real> &from, const Parameters &to) const {
    const Real *sine = now_.rows().at(1);
    add_row(from.phase, layer_.time_width, to.phase);
    for (int32_t z = 0; z < layer_.out_width; ++z) {
      const Real *weight = layer_.query_weight + z * query_stride() + layer_.node_width;
      for (int32_t j = 0; j < layer_.time_width; ++j) {
        to.phase[j] -= sine[j] * weight[j] * bias_.data()[z];
      }
    }
  }

  const AttentionLayer<Real> &layer_;
  RowBuffer<Real> now_, asks_, own_;
  Buffer<Real> bias_; // [Z] gradient of the query bias
};

} // namespace hpcgnn
