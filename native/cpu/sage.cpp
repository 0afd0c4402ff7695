// The fused layer of GraphSAGE.
#include "hpcgnn/sage.h"

#include <vector>

#include "cpu/shared/layer_parts.h"
#include "cpu/shared/row_sums.h"

namespace hpcgnn {
namespace {

template <typename Real> class Forward {
public:
  Forward(const SageLayer<Real> &layer, SageSaved<Real> &saved, Real *out)
      : layer_(layer), saved_(saved), out_(out), weight_(2 * layer.in_width, layer.out_width),
        blocks_(layer.destinations) {}

  void operator()(const Team &team) {
    weight_.fill_transposed(team, {layer_.weight, 2 * layer_.in_width});
    team.barrier();
    blocks_.each([&](Range block) { run(block); });
  }

private:
  void run(Range block) {
    const int64_t width = layer_.in_width;
    const gemm::Rows<Real> row = saved_.row.rows().from(block.begin);
    for (int64_t i = 0; i < block.size(); ++i) {
      const int64_t node = block.begin + i;
      prefetch_row(layer_.row(std::min(node + 2, layer_.destinations - 1)), width);
      copy_row(row.at(i), layer_.row(node), width);
      gather(node, row.at(i) + width);
    }
    const gemm::Rows<Real> out{out_ + block.begin * layer_.out_width, layer_.out_width};
    gemm::multiply<Real>(row, block.size(), weight_.packed, {out, layer_.bias});
    if (layer_.relu) {
      rectify(out.data, block.size() * layer_.out_width);
    }
  }

  void gather(int64_t node, Real *sum) const {
    const Range entries{layer_.indptr[node], layer_.indptr[node + 1]};
    const int64_t last = layer_.indptr[layer_.destinations] - 1;
    const auto row = [&](int64_t entry) { return layer_.row(layer_.entry[entry]); };
    if (layer_.edge_weight != nullptr) {
      sum_of_rows<Real>(entries, last, layer_.in_width, row, sum, false, Weighted<Real>{layer_.edge_weight});
    } else {
      sum_of_rows<Real>(entries, last, layer_.in_width, row, sum);
    }
    const Real share = layer_.share(node);
#pragma omp simd
    for (int64_t j = 0; j < layer_.in_width; ++j) {
      sum[j] *= share;
    }
  }

  static void rectify(Real *rows, int64_t count) {
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      rows[j] = rows[j] < Real(0) ? Real(0) : rows[j]; // a NaN stays one
    }
  }

  const SageLayer<Real> &layer_;
  SageSaved<Real> &saved_;
  Real *out_;
  PackedBuffer<Real> weight_;
  RowBlocks blocks_;
};

template <typename Real> class Backward {
public:
  Backward(const SageLayer<Real> &layer, const SageSaved<Real> &saved, const Real *out, const Real *gradient,
           const SageTranspose &transpose, Real *grad_rows)
      : layer_(layer), saved_(saved), out_(out), gradient_(gradient), transpose_(transpose), grad_rows_(grad_rows),
        weight_(layer.out_width, grad_rows ? 2 * layer.in_width : 0),
        passed_(grad_rows ? layer.destinations : 0, layer.in_width), groups_(layer.destinations),
        sources_(grad_rows ? layer.sources : 0), size_(layer.gradient_size()), sums_(groups_.count() * size_) {}

  struct Scratch {
    RowBuffer<Real> grad, row;
    explicit Scratch(const SageLayer<Real> &layer)
        : grad(kBlockRows, layer.out_width), row(kBlockRows, 2 * layer.in_width) {}
  };

  void operator()(const Team &team, const Scratch &scratch, Real *grad_weights) {
    if (grad_rows_ != nullptr) {
      weight_.fill(team, {layer_.weight, 2 * layer_.in_width});
      team.barrier();
    }
    groups_.each([&](int64_t group, Range block, bool first) {
      Real *weight = sums_.data() + group * size_, *bias = weight + size_ - layer_.out_width;
      if (first) {
        std::fill_n(bias, layer_.out_width, Real(0));
      }
      run(block, scratch, weight, bias, !first);
    });
    team.barrier();
    sum_groups(team, sums_.data(), groups_.count(), size_, true, grad_weights);
    sources_.each([&](Range block) { collect(block); });
  }

private:
  void run(Range block, const Scratch &scratch, Real *weight, Real *bias, bool add) {
    const gemm::Rows<Real> grad = scratch.grad.rows(), row = saved_.row.rows().from(block.begin);
    const int64_t out_width = layer_.out_width, row_width = 2 * layer_.in_width;
    for (int64_t i = 0; i < block.size(); ++i) {
      before_relu(block.begin + i, grad.at(i), bias);
    }
    gemm::multiply_transposed<Real>(grad, out_width, row, row_width, block.size(), {{weight, row_width}, nullptr, add});
    if (grad_rows_ != nullptr) {
      gemm::multiply<Real>(grad, block.size(), weight_.packed, {scratch.row.rows()});
      for (int64_t i = 0; i < block.size(); ++i) {
        pass_on(block.begin + i, scratch.row.rows().at(i));
      }
    }
  }

  void before_relu(int64_t node, Real *grad, Real *bias) const {
    const Real *gradient = gradient_ + node * layer_.out_width, *out = out_ + node * layer_.out_width;
    const bool relu = layer_.relu;
#pragma omp simd
    for (int64_t j = 0; j < layer_.out_width; ++j) {
      grad[j] = relu && !(out[j] > Real(0)) ? Real(0) : gradient[j];
      bias[j] += grad[j];
    }
  }

  // The gradient [2 I] of a saved row: to the own row, and to what every neighbor gets.
  void pass_on(int64_t node, const Real *grad) const {
    const int64_t width = layer_.in_width;
    const Real share = layer_.share(node);
    Real *own = grad_rows_ + node * width, *passed = passed_.rows().at(node);
    copy_row(own, grad, width);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      passed[j] = grad[width + j] * share;
    }
  }

  // What sources get from the nodes whose neighbors they are, in the order of the edges.
  void collect(Range block) const {
    const int64_t width = layer_.in_width, last = transpose_.indptr[layer_.sources] - 1;
    for (int64_t source = block.begin; source < block.end; ++source) {
      const Range entries{transpose_.indptr[source], transpose_.indptr[source + 1]};
      const auto row = [&](int64_t entry) { return passed_.rows().at(transpose_.destination[entry]); };
      Real *sum = grad_rows_ + source * width;
      const bool add = source < layer_.destinations;
      if (layer_.edge_weight != nullptr) {
        sum_of_rows<Real>(entries, last, width, row, sum, add, OfEdges{layer_.edge_weight, transpose_.edge});
      } else {
        sum_of_rows<Real>(entries, last, width, row, sum, add);
      }
    }
  }

  // Weights of the entries of a transposed list.
  struct OfEdges {
    const Real *weight;
    const int64_t *edge;
    template <typename Vector> Vector operator()(int64_t entry, Vector row) const { return row * weight[edge[entry]]; }
  };

  const SageLayer<Real> &layer_;
  const SageSaved<Real> &saved_;
  const Real *out_, *gradient_;
  const SageTranspose &transpose_;
  Real *grad_rows_;
  PackedBuffer<Real> weight_;
  RowBuffer<Real> passed_; // [D, I] gradient for each of a node's neighbors
  RowGroups groups_;
  RowBlocks sources_;
  int64_t size_;
  Buffer<Real> sums_;
};

// Threads for a layer: one where there is little to do.
template <typename Real> int threads_for(const SageLayer<Real> &layer, int threads) {
  return layer.destinations * (layer.in_width + layer.out_width) < kFewNumbers ? 1 : threads;
}

} // namespace

template <typename Real>
std::unique_ptr<SageSaved<Real>> sage_forward(const SageLayer<Real> &layer, Real *out, int threads) {
  auto saved = std::make_unique<SageSaved<Real>>();
  saved->row = {layer.destinations, 2 * layer.in_width};
  Forward<Real> forward(layer, *saved, out);
  in_parallel(threads_for(layer, threads), [&](const Team &team) { forward(team); });
  return saved;
}

template <typename Real>
void sage_backward(const SageLayer<Real> &layer, const SageSaved<Real> &saved, const Real *out, const Real *gradient,
                   const SageTranspose &transpose, Real *grad_rows, Real *grad_weights, int threads) {
  Backward<Real> backward(layer, saved, out, gradient, transpose, grad_rows);
  std::vector<typename Backward<Real>::Scratch> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(layer);
  }
  in_parallel(threads_for(layer, threads), [&](const Team &team) { backward(team, scratch[team.rank], grad_weights); });
}

template std::unique_ptr<SageSaved<float>> sage_forward(const SageLayer<float> &, float *, int);
template std::unique_ptr<SageSaved<double>> sage_forward(const SageLayer<double> &, double *, int);
template void sage_backward(const SageLayer<float> &, const SageSaved<float> &, const float *, const float *,
                            const SageTranspose &, float *, float *, int);
template void sage_backward(const SageLayer<double> &, const SageSaved<double> &, const double *, const double *,
                            const SageTranspose &, double *, double *, int);

} // namespace hpcgnn
