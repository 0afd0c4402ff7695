// The products of neighbouring weights of a temporal attention layer, and their gradients. A root's row [own | 1] meets
// query [H W, D + 1] (query and key weights) before the attention; the weighted sums meet out [Z, H W] (value and merge
// weights) and the row own [Z, D + 1] (the rest of the merge) after it. The last columns are biases.
#pragma once

#include "cpu/shared/layer_parts.h"
#include "hpcgnn/attention_layer.h"
#include "hpcgnn/encode.h"

namespace hpcgnn {

// Calls task(i) for this thread's part of n tasks.
template <typename Task> inline void share_tasks(const Team &team, int64_t n, const Task &task) {
  for (int64_t i = team.rank; i < n; i += team.size) {
    task(i);
  }
}

// Where the gradients of the composed weights, the norm's and the keys' phase lie: those summed over the different own
// rows, then those summed over roots.
template <typename Real> struct Gradients {
  Real *query, *own, *out, *norm_weight, *norm_bias, *phase;

  Gradients(const AttentionLayer<Real> &layer, Real *at)
      : query(at), own(query + layer.query_width() * (layer.node_width + 1)),
        out(own + int64_t(layer.out_width) * (layer.node_width + 1)),
        norm_weight(out + layer.out_width * layer.query_width()), norm_bias(norm_weight + layer.out_width),
        phase(norm_bias + layer.out_width) {}
};

template <typename Real> class AttentionWeights {
public:
  AttentionWeights(const AttentionLayer<Real> &layer, const TimeTable &table)
      : layer_(layer), depth_(layer.node_width + 1), head_width_(layer.out_width / layer.heads), now_(2, table.width()),
        scaled_(layer.out_width, depth_), value_(layer.out_width, layer.width()), query_(layer.query_width(), depth_),
        out_(layer.out_width, layer.query_width()), own_(layer.out_width, depth_), bias_(1, layer.out_width) {
    table.encode(0, now_.rows().at(0), now_.rows().at(1));
  }

  // Collective over the team; a barrier must follow.
  void compose(const Team &team) const {
    share_tasks(team, 2 * layer_.heads + 1, [&](int64_t task) {
      if (task < layer_.heads) {
        compose_query(task);
      } else if (task < 2 * layer_.heads) {
        compose_out(task - layer_.heads);
      } else {
        compose_own();
      }
    });
  }

  // Adds what the gradients of the composed matrices say of the parameters to theirs. Collective over the team.
  void backward(const Team &team, const Gradients<Real> &composed, bool with_phase, Real *gradient) const {
    const Parameters to(layer_, gradient);
    share_tasks(team, 2 * layer_.heads + 1, [&](int64_t task) {
      if (task < layer_.heads) {
        query_backward(task, composed.query, to);
      } else if (task < 2 * layer_.heads) {
        out_backward(task - layer_.heads, composed.out, to);
      } else {
        own_backward(composed, with_phase, to);
      }
    });
    if (with_phase) {
      team.barrier();
      if (team.rank == 0) {
        phase_backward(to);
      }
    }
  }

  gemm::Rows<const Real> query() const { return query_.rows(); }
  gemm::Rows<const Real> out() const { return out_.rows(); }
  gemm::Rows<const Real> own() const { return own_.rows(); }

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

private:
  int64_t first(int64_t head) const { return head * head_width_; }
  int64_t query_stride() const { return layer_.node_width + layer_.time_width; }
  int64_t merge_stride() const { return int64_t(layer_.out_width) + layer_.node_width; }
  const Real *key(int64_t head) const { return layer_.key + first(head) * layer_.width(); }

  // Rows of `scaled`: query weight and, since the root's own time difference is 0, bias + weight cos(b).
  void compose_query(int64_t head) const {
    const int64_t width = layer_.width(), depth = layer_.node_width;
    const Real *now = now_.rows().at(0), scale = static_cast<Real>(layer_.scale);
    for (int64_t i = first(head); i < first(head + 1); ++i) {
      const Real *from = layer_.query_weight + i * query_stride();
      Real *to = scaled_.rows().at(i), bias = layer_.query_bias[i];
      for (int64_t j = 0; j < depth; ++j) {
        to[j] = scale * from[j];
      }
      for (int32_t j = 0; j < layer_.time_width; ++j) {
        bias += from[depth + j] * now[j];
      }
      to[depth] = scale * bias;
    }
    gemm::multiply_transposed<Real>({key(head), width}, width, scaled_.rows().from(first(head)), depth_, head_width_,
                                    {query_.rows().from(head * width)});
  }

  void compose_out(int64_t head) const {
    const int64_t width = layer_.width();
    for (int64_t i = first(head); i < first(head + 1); ++i) {
      copy_row(value_.rows().at(i), layer_.value + i * width, width); // readable beyond its end
    }
    gemm::multiply<Real>({layer_.merge_weight + first(head), merge_stride()}, layer_.out_width,
                         value_.rows().from(first(head)), width, head_width_, {out_.rows().from(0, head * width)});
  }

  void compose_own() const {
    for (int64_t z = 0; z < layer_.out_width; ++z) {
      copy_row(own_.rows().at(z), layer_.merge_weight + z * merge_stride() + layer_.out_width, layer_.node_width);
      own_.rows().at(z)[layer_.node_width] = layer_.merge_bias[z];
    }
  }

  void query_backward(int64_t head, const Real *gradient, const Parameters &to) const {
    const int64_t width = layer_.width(), depth = layer_.node_width;
    const gemm::Rows<const Real> given{gradient + head * width * depth_, depth_};
    PackedBuffer<Real> transposed(depth_, width);
    transposed.fill_transposed({0, 1}, given);
    gemm::multiply<Real>(scaled_.rows().from(first(head)), head_width_, transposed.packed,
                         {{to.key + first(head) * width, width}, nullptr, true});
    const RowBuffer<Real> weight(head_width_, depth_);
    gemm::multiply<Real>({key(head), width}, head_width_, given, depth_, width, {weight.rows()});
    const Real *now = now_.rows().at(0), scale = static_cast<Real>(layer_.scale);
    for (int64_t i = 0; i < head_width_; ++i) {
      const Real *from = weight.rows().at(i), bias = scale * from[depth];
      Real *row = to.query_weight + (first(head) + i) * query_stride();
      for (int64_t j = 0; j < depth; ++j) {
        row[j] += scale * from[j];
      }
      for (int32_t j = 0; j < layer_.time_width; ++j) {
        row[depth + j] += bias * now[j];
      }
      bias_.rows().at(0)[first(head) + i] = bias;
      to.query_bias[first(head) + i] += bias;
    }
  }

  void out_backward(int64_t head, const Real *gradient, const Parameters &to) const {
    const int64_t width = layer_.width(), stride = layer_.query_width();
    const gemm::Rows<const Real> given{gradient + head * width, stride};
    PackedBuffer<Real> transposed(width, head_width_);
    transposed.fill_transposed({0, 1}, {layer_.value + first(head) * width, width});
    gemm::multiply<Real>(given, layer_.out_width, transposed.packed,
                         {{to.merge_weight + first(head), merge_stride()}, nullptr, true});
    gemm::multiply_transposed<Real>({layer_.merge_weight + first(head), merge_stride()}, head_width_, given, width,
                                    layer_.out_width, {{to.value + first(head) * width, width}, nullptr, true});
  }

  void own_backward(const Gradients<Real> &composed, bool with_phase, const Parameters &to) const {
    for (int64_t z = 0; z < layer_.out_width; ++z) {
      const Real *from = composed.own + z * depth_;
      add_row(from, layer_.node_width, to.merge_weight + z * merge_stride() + layer_.out_width);
      to.merge_bias[z] += from[layer_.node_width];
    }
    // The rest needs no product: both of the norm, and what the keys see of the phase.
    add_row(composed.norm_weight, 2 * layer_.out_width + (with_phase ? layer_.time_width : 0), to.norm_weight);
  }

  // What the query sees of the phase.
  void phase_backward(const Parameters &to) const {
    const Real *sine = now_.rows().at(1);
    for (int32_t z = 0; z < layer_.out_width; ++z) {
      const Real *weight = layer_.query_weight + z * query_stride() + layer_.node_width;
      for (int32_t j = 0; j < layer_.time_width; ++j) {
        to.phase[j] -= sine[j] * weight[j] * bias_.rows().at(0)[z];
      }
    }
  }

  const AttentionLayer<Real> &layer_;
  int64_t depth_, head_width_;
  RowBuffer<Real> now_, scaled_, value_, query_, out_, own_;
  RowBuffer<Real> bias_; // [1, Z] gradient of the query bias
};

} // namespace hpcgnn
