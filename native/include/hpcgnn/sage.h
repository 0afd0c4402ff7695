// A layer of GraphSAGE (Hamilton, Ying and Leskovec: Inductive representation learning on large graphs, 2017) on the
// CPU, forward and backward in one parallel region each: a block of rows is gathered, averaged, multiplied and
// rectified while it lies in the cache. D destination nodes, S source nodes (the first D of them the destinations), E
// edges, I input width, O output width.
#pragma once

#include <memory>

#include "hpcgnn/workspace.h"

namespace hpcgnn {

template <typename Real> struct SageLayer {
  int64_t destinations, sources;
  int32_t in_width, out_width;
  const Real *table;             // rows of width I
  const int64_t *index;          // [S] rows of the table, or null: the first S
  const int64_t *indptr, *entry; // [D + 1], [E] source nodes
  const Real *weight, *bias;     // [O, 2 I] of the own row, then of the neighbors'; [O]
  const Real *edge_weight;       // [E] factors of the neighbors' rows, or null: 1
  bool mean, relu;               // mean or sum of the neighbors; whether outputs are rectified

  const Real *row(int64_t source) const { return table + (index == nullptr ? source : index[source]) * in_width; }
  // What a neighbor's row is weighed with.
  Real share(int64_t destination) const {
    Real total = static_cast<Real>(indptr[destination + 1] - indptr[destination]);
    if (mean && edge_weight != nullptr) {
      total = 0;
      for (int64_t entry = indptr[destination]; entry < indptr[destination + 1]; ++entry) {
        total += edge_weight[entry];
      }
    }
    return mean && total > 0 ? Real(1) / total : Real(1);
  }
  // weight, bias
  int64_t gradient_size() const { return int64_t(out_width) * (2 * in_width + 1); }
};

template <typename Real> struct SageSaved {
  RowBuffer<Real> row; // [D, 2 I] own row, neighbors' mean
};

// CSR of the destinations that each source is an entry of, edge by edge.
struct SageTranspose {
  const int64_t *indptr, *destination, *edge; // [S + 1], [E], [E] edge; read with edge weights alone
};

// out [D, O].
template <typename Real>
std::unique_ptr<SageSaved<Real>> sage_forward(const SageLayer<Real> &layer, Real *out, int threads);
// gradient [D, O] of out; adds to grad_weights [gradient_size]. grad_rows [S, I] of the source nodes' rows, or null:
// then no transpose is needed.
template <typename Real>
void sage_backward(const SageLayer<Real> &layer, const SageSaved<Real> &saved, const Real *out, const Real *gradient,
                   const SageTranspose &transpose, Real *grad_rows, Real *grad_weights, int threads);

} // namespace hpcgnn
