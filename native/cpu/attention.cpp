// Temporal attention on the CPU, fused: gather of unique rows, time encoding, scores, softmax and weighted sum per
// root; the per-neighbour matrix [N, K, W] is never written. Keys and values are the raw rows [node | edge | time]: the
// caller projects the query through the key weights beforehand and the aggregate through the value weights afterwards.
#include <algorithm>
#include <cmath>
#include <vector>

#include "hpcgnn/cpu.h"
#include "hpcgnn/trig.h"

namespace hpcgnn::cpu {
namespace {

constexpr int kBlocks = 16; // private sums of the phase gradient: fixed, so that the result does not depend on threads

template <typename Real> Real dot(const Real *a, const Real *b, int32_t width) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int32_t j = 0; j < width; ++j) {
    sum += a[j] * b[j];
  }
  return sum;
}

template <typename Real> void axpy(Real scale, const Real *x, Real *y, int32_t width) {
#pragma omp simd
  for (int32_t j = 0; j < width; ++j) {
    y[j] += scale * x[j];
  }
}

// Scratch of one thread: cosines and sines of the slots of one root, its phase gradient.
template <typename Real> struct Scratch {
  std::vector<Real> cosine, sine, phase;
  explicit Scratch(const AttentionInput<Real> &in)
      : cosine(static_cast<size_t>(in.slots) * in.time_width), sine(cosine.size()), phase(in.time_width) {}
};

// The three pieces of one key row.
template <typename Real> struct Key {
  const Real *node, *edge, *time;
};

template <typename Real>
Key<Real> key_of(const AttentionInput<Real> &in, const Scratch<Real> &scratch, int64_t root, int32_t k) {
  const int64_t entry = root * in.slots + k;
  const Real *edge = in.edge_width ? in.edge + static_cast<int64_t>(in.edge_of[entry]) * in.edge_width : nullptr;
  return {in.node + static_cast<int64_t>(in.slot[entry]) * in.node_width, edge,
          scratch.cosine.data() + static_cast<size_t>(k) * in.time_width};
}

template <typename Real> Real dot_key(const AttentionInput<Real> &in, const Real *row, const Key<Real> &key) {
  Real sum = dot(row, key.node, in.node_width);
  if (in.edge_width) {
    sum += dot(row + in.node_width, key.edge, in.edge_width);
  }
  return sum + dot(row + in.node_width + in.edge_width, key.time, in.time_width);
}

template <typename Real> void add_key(const AttentionInput<Real> &in, Real scale, const Key<Real> &key, Real *row) {
  axpy(scale, key.node, row, in.node_width);
  if (in.edge_width) {
    axpy(scale, key.edge, row + in.node_width, in.edge_width);
  }
  axpy(scale, key.time, row + in.node_width + in.edge_width, in.time_width);
}

template <typename Real>
void encode_slots(const AttentionInput<Real> &in, int64_t root, Scratch<Real> &scratch, bool with_sine) {
  for (int32_t k = 0; k < in.count[root]; ++k) {
    const size_t row = static_cast<size_t>(k) * in.time_width;
    encode_row(static_cast<double>(in.dt[root * in.slots + k]), in.frequency, in.phase, in.time_width,
               scratch.cosine.data() + row, with_sine ? scratch.sine.data() + row : nullptr);
  }
}

template <typename Real> void softmax(Real *score, int32_t count) {
  const Real largest = *std::max_element(score, score + count);
  Real sum = 0;
  for (int32_t k = 0; k < count; ++k) {
    score[k] = std::exp(score[k] - largest);
    sum += score[k];
  }
  for (int32_t k = 0; k < count; ++k) {
    score[k] /= sum;
  }
}

template <typename Real>
void forward_root(const AttentionInput<Real> &in, int64_t root, Scratch<Real> &scratch, Real *aggregate, Real *weight) {
  const int32_t width = in.node_width + in.edge_width + in.time_width, count = in.count[root];
  std::fill(aggregate, aggregate + in.heads * width, Real(0));
  std::fill(weight, weight + in.heads * in.slots, Real(0));
  if (count == 0) {
    return;
  }
  encode_slots(in, root, scratch, false);
  for (int32_t head = 0; head < in.heads; ++head) {
    const Real *query = in.query + (root * in.heads + head) * width;
    Real *score = weight + head * in.slots;
    for (int32_t k = 0; k < count; ++k) {
      score[k] = dot_key(in, query, key_of(in, scratch, root, k));
    }
    softmax(score, count);
    for (int32_t k = 0; k < count; ++k) {
      add_key(in, score[k], key_of(in, scratch, root, k), aggregate + head * width);
    }
  }
}

// phase[j] += sum over slots of sine * gradient of the cosine, one head; negated by the caller.
template <typename Real>
void add_phase(const AttentionInput<Real> &in, int32_t count, const Scratch<Real> &scratch, const Real *weight,
               const Real *ds, const Real *gradient, const Real *query, Real *phase) {
  for (int32_t k = 0; k < count; ++k) {
    const Real *sine = scratch.sine.data() + static_cast<size_t>(k) * in.time_width;
    const Real weight_k = weight[k], ds_k = ds[k];
#pragma omp simd
    for (int32_t j = 0; j < in.time_width; ++j) {
      phase[j] += sine[j] * (weight_k * gradient[j] + ds_k * query[j]);
    }
  }
}

// Score gradients and query gradient of one root; adds to the phase gradient when that is wanted.
template <typename Real>
void backward_root(const AttentionInput<Real> &in, int64_t root, Scratch<Real> &scratch, const Real *weight,
                   const Real *grad_aggregate, Real *score_gradient, Real *grad_query, double *grad_phase) {
  const int32_t width = in.node_width + in.edge_width + in.time_width, count = in.count[root];
  std::fill(grad_query, grad_query + in.heads * width, Real(0));
  std::fill(score_gradient, score_gradient + in.heads * in.slots, Real(0));
  if (count == 0) {
    return;
  }
  encode_slots(in, root, scratch, grad_phase != nullptr);
  std::fill(scratch.phase.begin(), scratch.phase.end(), Real(0));
  const int32_t time_start = in.node_width + in.edge_width;
  for (int32_t head = 0; head < in.heads; ++head) {
    const Real *query = in.query + (root * in.heads + head) * width, *gradient = grad_aggregate + head * width;
    const Real *a = weight + head * in.slots;
    Real *ds = score_gradient + head * in.slots, mean = 0;
    for (int32_t k = 0; k < count; ++k) {
      ds[k] = dot_key(in, gradient, key_of(in, scratch, root, k));
      mean += a[k] * ds[k];
    }
    for (int32_t k = 0; k < count; ++k) {
      ds[k] = a[k] * (ds[k] - mean);
      add_key(in, ds[k], key_of(in, scratch, root, k), grad_query + head * width);
    }
    if (grad_phase != nullptr) {
      add_phase(in, count, scratch, a, ds, gradient + time_start, query + time_start, scratch.phase.data());
    }
  }
  for (int32_t j = 0; grad_phase != nullptr && j < in.time_width; ++j) {
    grad_phase[j] -= static_cast<double>(scratch.phase[j]);
  }
}

// Gradient of one unique row: over all slots that show it, in their order.
template <typename Real>
void backward_node(const AttentionInput<Real> &in, const Real *weight, const Real *score_gradient,
                   const Real *grad_aggregate, const int64_t *order, int64_t begin, int64_t end, Real *grad) {
  const int32_t width = in.node_width + in.edge_width + in.time_width;
  std::fill(grad, grad + in.node_width, Real(0));
  for (int64_t j = begin; j < end; ++j) {
    const int64_t root = order[j] / in.slots, k = order[j] % in.slots;
    for (int32_t head = 0; head < in.heads; ++head) {
      const int64_t row = root * in.heads + head;
      const Real a = weight[row * in.slots + k], ds = score_gradient[row * in.slots + k];
      const Real *gradient = grad_aggregate + row * width, *query = in.query + row * width;
#pragma omp simd
      for (int32_t column = 0; column < in.node_width; ++column) {
        grad[column] += a * gradient[column] + ds * query[column];
      }
    }
  }
}

} // namespace

template <typename Real>
void attention_forward(const AttentionInput<Real> &in, Real *aggregate, Real *weight, int threads) {
  const int64_t row = static_cast<int64_t>(in.heads) * (in.node_width + in.edge_width + in.time_width);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Scratch<Real> scratch(in);
#pragma omp for schedule(static)
    for (int64_t root = 0; root < in.roots; ++root) {
      forward_root(in, root, scratch, aggregate + root * row, weight + root * in.heads * in.slots);
    }
  }
}

template <typename Real>
void attention_backward(const AttentionInput<Real> &in, const Real *weight, const Real *grad_aggregate,
                        const int64_t *slot_indptr, const int64_t *slot_order, Real *score_gradient, Real *grad_query,
                        Real *grad_node, double *grad_phase, int threads) {
  const int64_t row = static_cast<int64_t>(in.heads) * (in.node_width + in.edge_width + in.time_width);
  std::vector<double> partial(grad_phase ? static_cast<size_t>(kBlocks) * in.time_width : 0, 0.0);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Scratch<Real> scratch(in);
#pragma omp for schedule(static)
    for (int block = 0; block < kBlocks; ++block) {
      for (int64_t root = in.roots * block / kBlocks; root < in.roots * (block + 1) / kBlocks; ++root) {
        const int64_t scores = root * in.heads * in.slots;
        backward_root(in, root, scratch, weight + scores, grad_aggregate + root * row, score_gradient + scores,
                      grad_query + root * row,
                      grad_phase ? partial.data() + static_cast<size_t>(block) * in.time_width : nullptr);
      }
    }
#pragma omp for schedule(dynamic, 64)
    for (int64_t node = 0; node < in.unique; ++node) {
      backward_node(in, weight, score_gradient, grad_aggregate, slot_order, slot_indptr[node], slot_indptr[node + 1],
                    grad_node + node * in.node_width);
    }
  }
  for (int block = 0; grad_phase != nullptr && block < kBlocks; ++block) {
    axpy(1.0, partial.data() + static_cast<size_t>(block) * in.time_width, grad_phase, in.time_width);
  }
}

template void attention_forward<float>(const AttentionInput<float> &, float *, float *, int);
template void attention_forward<double>(const AttentionInput<double> &, double *, double *, int);
template void attention_backward<float>(const AttentionInput<float> &, const float *, const float *, const int64_t *,
                                        const int64_t *, float *, float *, float *, double *, int);
template void attention_backward<double>(const AttentionInput<double> &, const double *, const double *,
                                         const int64_t *, const int64_t *, double *, double *, double *, double *, int);

} // namespace hpcgnn::cpu
