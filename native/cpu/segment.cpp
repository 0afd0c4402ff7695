// Sums, maxima and attention over lists of edges on the CPU: a list belongs to one thread, and lists are dealt in
// blocks to whoever is free, as degrees differ.
#include "hpcgnn/segment.h"

#include "cpu/shared/row_sums.h"

namespace hpcgnn {
namespace {

// Calls work(segment) for all segments; on one thread where there is little to do for each of their `width` columns.
template <typename Work> void each_segment(const EdgeLists &lists, int64_t width, int threads, const Work &work) {
  RowBlocks blocks(lists.segments);
  const bool small = (lists.segments + lists.indptr[lists.segments]) * width < kFewNumbers;
  in_parallel(small ? 1 : threads, [&](const Team &) {
    blocks.each([&](Range block) {
      for (int64_t segment = block.begin; segment < block.end; ++segment) {
        work(segment);
      }
    });
  });
}

template <typename Real>
void weighted_sum(const EdgeLists &lists, int64_t segment, const Real *rows, int64_t width,
                  const EdgeWeights<Real> &weights, Real *sum) {
  const int64_t columns = width / weights.heads;
  std::fill_n(sum, width, Real(0));
  for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
    const Real *row = rows + lists.row[j] * width, *weight = weights.weight + lists.edge_of(j) * weights.heads;
    for (int32_t head = 0; head < weights.heads; ++head) {
      const Real factor = weight[head];
      const int64_t begin = head * columns, end = begin + columns;
#pragma omp simd
      for (int64_t column = begin; column < end; ++column) {
        sum[column] += factor * row[column];
      }
    }
  }
}

} // namespace

template <typename Real>
void segment_sum(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
                 int threads) {
  const int64_t last = lists.indptr[lists.segments] - 1;
  each_segment(lists, width, threads, [&](int64_t segment) {
    const Range entries{lists.indptr[segment], lists.indptr[segment + 1]};
    const auto row = [&](int64_t entry) { return rows + lists.row[entry] * width; };
    if (weights.weight == nullptr && width == 1) { // numbers of the edges themselves: nothing lies ahead
      out[segment] = 0;
      for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
        out[segment] += rows[lists.row[entry]];
      }
    } else if (weights.weight == nullptr) {
      sum_of_rows<Real>(entries, last, width, row, out + segment * width);
    } else if (weights.heads == 1) {
      const auto weigh = [&](int64_t entry, auto part) { return part * weights.weight[lists.edge_of(entry)]; };
      sum_of_rows<Real>(entries, last, width, row, out + segment * width, false, weigh);
    } else {
      weighted_sum(lists, segment, rows, width, weights, out + segment * width);
    }
  });
}

template <typename Real>
void segment_max(const EdgeLists &lists, const Real *rows, int64_t width, Real *out, int64_t *winner, int threads) {
  each_segment(lists, width, threads, [&](int64_t segment) {
    Real *largest = out + segment * width;
    int64_t *edges = winner + segment * width;
    std::fill_n(largest, width, Real(0));
    std::fill_n(edges, width, int64_t(-1));
    for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
      const Real *row = rows + lists.row[j] * width;
      const int64_t edge = lists.edge_of(j);
#pragma omp simd
      for (int64_t column = 0; column < width; ++column) {
        const bool better = edges[column] < 0 || is_larger(row[column], largest[column]);
        largest[column] = better ? row[column] : largest[column];
        edges[column] = better ? edge : edges[column];
      }
    }
  });
}

template <typename Real>
void segment_max_backward(const EdgeLists &transposed, const Real *gradient, const int64_t *winner, int64_t width,
                          Real *grad_rows, int threads) {
  each_segment(transposed, width, threads, [&](int64_t source) {
    Real *sum = grad_rows + source * width;
    std::fill_n(sum, width, Real(0));
    for (int64_t j = transposed.indptr[source]; j < transposed.indptr[source + 1]; ++j) {
      const Real *row = gradient + transposed.row[j] * width;
      const int64_t *edges = winner + transposed.row[j] * width, edge = transposed.edge_of(j);
#pragma omp simd
      for (int64_t column = 0; column < width; ++column) {
        sum[column] += edges[column] == edge ? row[column] : Real(0);
      }
    }
  });
}

template <typename Real>
void edge_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, int threads) {
  const int64_t columns = width / heads;
  each_segment(lists, width, threads, [&](int64_t segment) {
    for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
      for (int32_t head = 0; head < heads; ++head) {
        const Real *a = segment_rows + segment * width + head * columns, *b = rows + lists.row[j] * width;
        b += head * columns;
        Real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t column = 0; column < columns; ++column) {
          sum += a[column] * b[column];
        }
        product[lists.edge_of(j) * heads + head] = sum;
      }
    }
  });
}

template <typename Real>
void edge_attention(const EdgeLists &lists, const EdgeScores<Real> &scores, Real *weight, int threads) {
  each_segment(lists, scores.heads, threads, [&](int64_t segment) {
    for (int32_t head = 0; head < scores.heads; ++head) {
      edge_softmax(lists, segment, scores, head, weight);
    }
  });
}

template <typename Real>
void edge_attention_backward(const EdgeLists &lists, const EdgeScores<Real> &scores, const Real *weight,
                             Real *grad_score, Real *grad_target, int threads) {
  each_segment(lists, scores.heads, threads, [&](int64_t segment) {
    for (int32_t head = 0; head < scores.heads; ++head) {
      grad_target[segment * scores.heads + head] =
          edge_softmax_backward(lists, segment, scores, head, weight, grad_score);
    }
  });
}

#define HPCGNN_INSTANTIATE(Real)                                                                                       \
  template void segment_sum(const EdgeLists &, const Real *, int64_t, const EdgeWeights<Real> &, Real *, int);         \
  template void segment_max(const EdgeLists &, const Real *, int64_t, Real *, int64_t *, int);                         \
  template void segment_max_backward(const EdgeLists &, const Real *, const int64_t *, int64_t, Real *, int);          \
  template void edge_products(const EdgeLists &, const Real *, const Real *, int64_t, int32_t, Real *, int);           \
  template void edge_attention(const EdgeLists &, const EdgeScores<Real> &, Real *, int);                              \
  template void edge_attention_backward(const EdgeLists &, const EdgeScores<Real> &, const Real *, Real *, Real *, int);
HPCGNN_INSTANTIATE(float)
HPCGNN_INSTANTIATE(double)
#undef HPCGNN_INSTANTIATE

} // namespace hpcgnn
