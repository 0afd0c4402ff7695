// Softmax attention of one root over its slots: keys are the rows [node | edge | time], in thread-private memory.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/shared/layer_parts.h"
#include "hpcgnn/attention_layer.h"
#include "hpcgnn/base/activation.h"
#include "hpcgnn/encode.h"

namespace hpcgnn {

// out[h, k] = query_h . key_k for H queries and K keys at a time, so that each is loaded once.
template <typename Real, int H, int K>
inline void dot_tile(gemm::Rows<const Real> query, gemm::Rows<const Real> key, int64_t width, gemm::Rows<Real> out) {
  constexpr int L = simd::kLanes<Real>;
  simd::Vector<Real> sum[H][K] = {};
  const auto add = [&](int64_t j, int lanes) {
    simd::Vector<Real> left[H];
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h) {
      left[h] = lanes == L ? simd::load(query.at(h) + j) : simd::load_first(query.at(h) + j, lanes);
    }
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) {
      const simd::Vector<Real> right = lanes == L ? simd::load(key.at(k) + j) : simd::load_first(key.at(k) + j, lanes);
#pragma GCC unroll 2
      for (int h = 0; h < H; ++h) {
        sum[h][k] = simd::multiply_add(left[h], right, sum[h][k]);
      }
    }
  };
  int64_t j = 0;
  for (; j + L <= width; j += L) {
    add(j, L);
  }
  if (j < width) {
    add(j, static_cast<int>(width - j));
  }
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) {
      out.at(h)[k] = simd::sum<Real>(sum[h][k]);
    }
  }
}

template <typename Real, int H>
inline void dot_heads(gemm::Rows<const Real> query, gemm::Rows<const Real> key, int64_t width, int32_t keys,
                      gemm::Rows<Real> out) {
  int32_t k = 0;
  for (; k + 4 <= keys; k += 4) {
    dot_tile<Real, H, 4>(query, key.from(k), width, out.from(0, k));
  }
  if (k + 2 <= keys) {
    dot_tile<Real, H, 2>(query, key.from(k), width, out.from(0, k));
    k += 2;
  }
  if (k < keys) {
    dot_tile<Real, H, 1>(query, key.from(k), width, out.from(0, k));
  }
}

template <typename Real> class RootAttention {
public:
  RootAttention(const AttentionLayer<Real> &layer, const TimeTable &table)
      : layer_(layer), table_(table), content_(layer.node_width + layer.edge_width),
        key_(layer.slots, content_ + table.width()), score_(layer.heads, layer.slots),
        sine_(layer.slots, table.width()) {}

  // weighted [H, W] sums of the keys; weight [H, K].
  void forward(int64_t root, const Real *query, Real *weighted, Real *weight) {
    const int32_t count = layer_.count[root];
    std::fill_n(weight, layer_.heads * layer_.slots, Real(0));
    if (count == 0) {
      std::fill_n(weighted, layer_.query_width(), Real(0));
      return;
    }
    make_keys(root);
    scores(query, count);
    for (int32_t head = 0; head < layer_.heads; ++head) {
      softmax(score_.rows().at(head), count);
      std::copy_n(score_.rows().at(head), count, weight + head * layer_.slots);
    }
    sum_keys(count, weighted);
  }

  // From the gradient [H, W] of the weighted sums: grad_score [H, K], grad_query [H, W].
  void backward(int64_t root, const Real *gradient, const Real *weight, Real *grad_score, Real *grad_query) {
    const int32_t count = layer_.count[root];
    std::fill_n(grad_score, layer_.heads * layer_.slots, Real(0));
    if (count == 0) {
      std::fill_n(grad_query, layer_.query_width(), Real(0));
      return;
    }
    make_keys(root);
    scores(gradient, count);
    for (int32_t head = 0; head < layer_.heads; ++head) {
      Real *score = score_.rows().at(head), mean = 0;
      const Real *a = weight + head * layer_.slots;
      for (int32_t k = 0; k < count; ++k) {
        mean += a[k] * score[k];
      }
      for (int32_t k = 0; k < count; ++k) {
        score[k] = a[k] * (score[k] - mean);
      }
      std::copy_n(score, count, grad_score + head * layer_.slots);
    }
    sum_keys(count, grad_query);
  }

  // Adds to the phase's gradient [T]; arguments as backward() takes and leaves them.
  void add_phase(int64_t root, const Real *gradient, const Real *weight, const Real *grad_score, const Real *query,
                 Real *phase) {
    const int64_t width = layer_.width();
    for (int32_t k = 0; k < layer_.count[root]; ++k) {
      Real *sine = sine_.rows().at(k);
      table_.encode(layer_.dt[root * layer_.slots + k], key_.rows().at(k) + content_, sine);
      for (int32_t head = 0; head < layer_.heads; ++head) {
        const Real a = weight[head * layer_.slots + k], ds = grad_score[head * layer_.slots + k];
        const Real *g = gradient + head * width + content_, *q = query + head * width + content_;
#pragma omp simd
        for (int32_t j = 0; j < layer_.time_width; ++j) {
          phase[j] -= sine[j] * (a * g[j] + ds * q[j]);
        }
      }
    }
  }

private:
  void make_keys(int64_t root) {
    for (int32_t k = 0; k < layer_.count[root]; ++k) {
      const int64_t entry = root * layer_.slots + k;
      Real *key = key_.rows().at(k);
      copy_row(key, layer_.node + static_cast<int64_t>(layer_.slot[entry]) * layer_.node_width, layer_.node_width);
      if (layer_.edge_width) {
        copy_row(key + layer_.node_width, layer_.edge + static_cast<int64_t>(layer_.edge_of[entry]) * layer_.edge_width,
                 layer_.edge_width);
      }
      table_.encode(layer_.dt[entry], key + content_);
    }
  }

  void scores(const Real *query, int32_t count) {
    const gemm::Rows<const Real> queries{query, layer_.width()}, keys = key_.rows();
    int32_t head = 0;
    for (; head + 2 <= layer_.heads; head += 2) {
      dot_heads<Real, 2>(queries.from(head), keys, layer_.width(), count, score_.rows().from(head));
    }
    if (head < layer_.heads) {
      dot_heads<Real, 1>(queries.from(head), keys, layer_.width(), count, score_.rows().from(head));
    }
  }

  // Whole registers: what lies behind `count` gets weight 0.
  void softmax(Real *score, int32_t count) {
    std::fill(score + count, score + score_.stride, Real(-1e30));
    const Real largest = *std::max_element(score, score + count);
    Real sum = 0;
    for (int64_t begin = 0; begin < score_.stride; begin += simd::kLanes<Real>) {
      for (int j = 0; j < simd::kLanes<Real>; ++j) {
        score[begin + j] = exponential(score[begin + j] - largest);
      }
    }
    for (int32_t k = 0; k < count; ++k) {
      sum += score[k];
    }
    for (int32_t k = 0; k < count; ++k) {
      score[k] /= sum;
    }
  }

  // sums [H, W] = score [H, count] times the keys.
  void sum_keys(int32_t count, Real *sums) {
    gemm::multiply<Real>(score_.rows(), layer_.heads, key_.rows(), layer_.width(), count, {{sums, layer_.width()}});
  }

  const AttentionLayer<Real> &layer_;
  const TimeTable &table_;
  int64_t content_;
  RowBuffer<Real> key_, score_, sine_;
};

} // namespace hpcgnn
