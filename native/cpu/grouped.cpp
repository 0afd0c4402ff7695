// Products of groups of rows with a matrix each, in one parallel region: the relations of a typed graph. Sums of rows for
// heads: a row is loaded once for up to four heads.
#include "hpcgnn/grouped.h"

#include <type_traits>
#include <vector>

#include "cpu/shared/row_sums.h"

namespace hpcgnn {
namespace {

constexpr int64_t kHeadRows = 32; // segments that a thread takes at a time

// A part of a group that one thread takes on.
struct Piece {
  int64_t group;
  Range part;
};

// Every group's `size(group)` in parts of at most `most`.
template <typename Size> std::vector<Piece> cut(int64_t groups, int64_t most, const Size &size) {
  std::vector<Piece> pieces;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t whole = size(group), parts = (whole + most - 1) / most;
    for (int64_t part = 0; part < parts; ++part) {
      pieces.push_back({group, part_of(whole, part, parts, kRowUnit)});
    }
  }
  return pieces;
}

// One thread where there is little to do.
int threads_for(const Groups &groups, int64_t width, int threads) {
  return groups.begin[groups.count] * width < kFewNumbers ? 1 : threads;
}

// Packed right-hand sides of all groups, one after the other.
template <typename Real> struct PackedGroups {
  int64_t depth, width, size;
  Buffer<Real> memory;
  PackedGroups(int64_t groups, int64_t depth, int64_t width)
      : depth(depth), width(width), size(gemm::Packed<Real>::size(depth, width)), memory(groups * size) {}
  gemm::Packed<Real> of(int64_t group) const { return {memory.data() + group * size, depth, width}; }
};

// out of all groups: rows [n, depth] with what fill(group, packed, panel) packs.
template <typename Real, typename Fill>
void multiply_groups(const Groups &groups, gemm::Rows<const Real> rows, PackedGroups<Real> &weight,
                     gemm::Rows<Real> out, int threads, const Fill &fill) {
  const auto pieces =
      cut(groups.count, kBlockRows, [&](int64_t group) { return groups.begin[group + 1] - groups.begin[group]; });
  Pieces packing(groups.count), work(static_cast<int64_t>(pieces.size()));
  in_parallel(threads_for(groups, weight.depth + weight.width, threads), [&](const Team &team) {
    packing.each([&](int64_t group) {
      const gemm::Packed<Real> packed = weight.of(group);
      for (int64_t panel = 0; groups.begin[group] < groups.begin[group + 1] && panel < packed.panels(); ++panel) {
        fill(group, packed, panel);
      }
    });
    team.barrier();
    work.each([&](int64_t number) {
      const Piece &piece = pieces[number];
      const int64_t row = groups.begin[piece.group] + piece.part.begin;
      gemm::multiply<Real>(rows.from(row), piece.part.size(), weight.of(piece.group), {out.from(row)});
    });
  });
}

// grad_weight [G, I, O]: a piece is some rows of one group's matrix, summed over the group's rows in blocks.
template <typename Real>
void weight_gradients(const Groups &groups, gemm::Rows<const Real> rows, int64_t in_width,
                      gemm::Rows<const Real> gradient, int64_t out_width, Real *grad_weight, int threads) {
  const auto pieces = cut(groups.count, 64, [&](int64_t) { return in_width; });
  Pieces work(static_cast<int64_t>(pieces.size()));
  std::vector<RowBuffer<Real>> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(kBlockRows, out_width); // a copy, readable beyond its end
  }
  in_parallel(threads_for(groups, in_width + out_width, threads), [&](const Team &team) {
    const gemm::Rows<Real> copy = scratch[team.rank].rows();
    work.each([&](int64_t number) {
      const Piece &piece = pieces[number];
      const Range all{groups.begin[piece.group], groups.begin[piece.group + 1]};
      Real *to = grad_weight + (piece.group * in_width + piece.part.begin) * out_width;
      std::fill_n(to, piece.part.size() * out_width, Real(0));
      for (int64_t begin = all.begin; begin < all.end; begin += kBlockRows) {
        const int64_t count = std::min(kBlockRows, all.end - begin);
        for (int64_t i = 0; i < count; ++i) {
          copy_row(copy.at(i), gradient.at(begin + i), out_width);
        }
        gemm::multiply_transposed<Real>(rows.from(begin, piece.part.begin), piece.part.size(), copy, out_width, count,
                                        {{to, out_width}, nullptr, true});
      }
    });
  });
}

// Calls work(segment) for all segments; on one thread where there is little to do for each of their `width` columns.
template <typename Work> void each_segment(const EdgeLists &lists, int64_t width, int threads, const Work &work) {
  Pieces pieces((lists.segments + kHeadRows - 1) / kHeadRows);
  const int64_t entries = lists.indptr[lists.segments] - lists.indptr[0];
  in_parallel((lists.segments + entries) * width < kFewNumbers ? 1 : threads, [&](const Team &) {
    pieces.each([&](int64_t piece) {
      const int64_t end = std::min(lists.segments, (piece + 1) * kHeadRows);
      for (int64_t segment = piece * kHeadRows; segment < end; ++segment) {
        work(segment);
      }
    });
  });
}

// Calls body(head, constant) for all heads, of which it does four, two or one at a time.
template <typename Body> void each_heads(int32_t heads, const Body &body) {
  int32_t head = 0;
  for (; head + 4 <= heads; head += 4) {
    body(head, std::integral_constant<int, 4>());
  }
  for (; head + 2 <= heads; head += 2) {
    body(head, std::integral_constant<int, 2>());
  }
  for (; head < heads; ++head) {
    body(head, std::integral_constant<int, 1>());
  }
}

// Calls body(column, registers, lanes of the last one) for pieces of four registers, then of one.
template <typename Real, typename Body> void each_columns(int64_t width, const Body &body) {
  constexpr int L = simd::kLanes<Real>;
  int64_t column = 0;
  for (; column + 4 * L <= width; column += 4 * L) {
    body(column, std::integral_constant<int, 4>(), L);
  }
  for (; column < width; column += L) {
    body(column, std::integral_constant<int, 1>(), static_cast<int>(std::min<int64_t>(L, width - column)));
  }
}

template <typename Real, int V> void load_columns(const Real *from, int last, simd::Vector<Real> *to) {
  constexpr int L = simd::kLanes<Real>;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    to[v] = v + 1 < V || last == L ? simd::load(from + v * L) : simd::load_first(from + v * L, last);
  }
}

template <typename Real, int V> void store_columns(Real *to, int last, const simd::Vector<Real> *from) {
  constexpr int L = simd::kLanes<Real>;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    v + 1 < V || last == L ? simd::store(to + v * L, from[v]) : simd::store_first(to + v * L, from[v], last);
  }
}

// H heads' sums of V registers of a segment; heads are `step` numbers apart.
template <typename Real, int H, int V>
void sum_heads(const EdgeLists &lists, int64_t segment, const Real *rows, int64_t width,
               const EdgeWeights<Real> &weights, int32_t head, int last, Real *out, int64_t step) {
  simd::Vector<Real> sum[H][V] = {};
  for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
    const Real *weight = weights.weight + lists.edge_of(j) * weights.heads + head;
    simd::Vector<Real> value[V];
    load_columns<Real, V>(rows + lists.row[j] * width, last, value);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const simd::Vector<Real> factor = simd::broadcast(weight[h]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[h][v] = simd::multiply_add(factor, value[v], sum[h][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
    store_columns<Real, V>(out + h * step, last, sum[h]);
  }
}

// Products of one row with the rows of H heads, which are `step` numbers apart.
template <typename Real, int H>
void multiply_heads(const Real *heads, int64_t step, const Real *row, int64_t width, Real *product) {
  simd::Vector<Real> sum[H] = {};
  each_columns<Real>(width, [&](int64_t column, auto registers, int last) {
    constexpr int V = decltype(registers)::value;
    simd::Vector<Real> value[V], other[V];
    load_columns<Real, V>(row + column, last, value);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      load_columns<Real, V>(heads + h * step + column, last, other);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[h] = simd::multiply_add(value[v], other[v], sum[h]);
      }
    }
  });
  for (int h = 0; h < H; ++h) {
    product[h] = simd::sum<Real>(sum[h]);
  }
}

} // namespace

template <typename Real>
void head_sums(const EdgeLists &lists, const Real *rows, int64_t width, const EdgeWeights<Real> &weights, Real *out,
               int threads) {
  const int64_t step = lists.segments * width, last = lists.indptr[lists.segments] - 1;
  each_segment(lists, width, threads, [&](int64_t segment) {
    for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
      prefetch_row(rows + lists.row[std::min(j + kAhead, last)] * width, width);
    }
    each_heads(weights.heads, [&](int32_t head, auto heads) {
      each_columns<Real>(width, [&](int64_t column, auto registers, int lanes) {
        sum_heads<Real, decltype(heads)::value, decltype(registers)::value>(
            lists, segment, rows + column, width, weights, head, lanes, out + head * step + segment * width + column,
            step);
      });
    });
  });
}

template <typename Real>
void head_products(const EdgeLists &lists, const Real *segment_rows, const Real *rows, int64_t width, int32_t heads,
                   Real *product, int threads) {
  const int64_t step = lists.segments * width, last = lists.indptr[lists.segments] - 1;
  each_segment(lists, width, threads, [&](int64_t segment) {
    for (int64_t j = lists.indptr[segment]; j < lists.indptr[segment + 1]; ++j) {
      prefetch_row(rows + lists.row[std::min(j + kAhead, last)] * width, width);
      each_heads(heads, [&](int32_t head, auto some) {
        multiply_heads<Real, decltype(some)::value>(segment_rows + head * step + segment * width, step,
                                                    rows + lists.row[j] * width, width,
                                                    product + lists.edge_of(j) * heads + head);
      });
    }
  });
}

template <typename Real>
void add_head_rows(const EdgeLists &transposed, const Real *head_rows, int64_t num_rows, int64_t width,
                   const EdgeWeights<Real> &weights, Real *sum, int threads) {
  each_segment(transposed, width, threads, [&](int64_t segment) {
    if (transposed.size(segment) == 0) {
      return;
    }
    each_columns<Real>(width, [&](int64_t column, auto registers, int last) {
      constexpr int V = decltype(registers)::value;
      simd::Vector<Real> total[V], value[V];
      load_columns<Real, V>(sum + segment * width + column, last, total);
      for (int64_t j = transposed.indptr[segment]; j < transposed.indptr[segment + 1]; ++j) {
        const Real *weight = weights.weight + transposed.edge_of(j) * weights.heads;
        for (int32_t head = 0; head < weights.heads; ++head) {
          load_columns<Real, V>(head_rows + (head * num_rows + transposed.row[j]) * width + column, last, value);
          const simd::Vector<Real> factor = simd::broadcast(weight[head]);
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) {
            total[v] = simd::multiply_add(factor, value[v], total[v]);
          }
        }
      }
      store_columns<Real, V>(sum + segment * width + column, last, total);
    });
  });
}

template <typename Real>
void grouped_linear(const Groups &groups, const Real *rows, int64_t in_width, const Real *weight, int64_t out_width,
                    Real *out, int threads) {
  PackedGroups<Real> packed(groups.count, in_width, out_width);
  multiply_groups<Real>(groups, {rows, in_width}, packed, {out, out_width}, threads,
                        [&](int64_t group, const gemm::Packed<Real> &to, int64_t panel) {
                          gemm::pack<Real>(to, {weight + group * in_width * out_width, out_width}, panel);
                        });
}

template <typename Real>
void grouped_linear_backward(const Groups &groups, const Real *rows, int64_t in_width, const Real *weight,
                             int64_t out_width, const Real *gradient, Real *grad_rows, Real *grad_weight, int threads) {
  if (grad_rows != nullptr) {
    PackedGroups<Real> packed(groups.count, out_width, in_width);
    multiply_groups<Real>(groups, {gradient, out_width}, packed, {grad_rows, in_width}, threads,
                          [&](int64_t group, const gemm::Packed<Real> &to, int64_t panel) {
                            gemm::pack_transposed<Real>(to, {weight + group * in_width * out_width, out_width}, panel);
                          });
  }
  if (grad_weight != nullptr) {
    weight_gradients<Real>(groups, {rows, in_width}, in_width, {gradient, out_width}, out_width, grad_weight, threads);
  }
}

#define HPCGNN_INSTANTIATE(Real)                                                                                       \
  template void head_sums(const EdgeLists &, const Real *, int64_t, const EdgeWeights<Real> &, Real *, int);           \
  template void head_products(const EdgeLists &, const Real *, const Real *, int64_t, int32_t, Real *, int);           \
  template void add_head_rows(const EdgeLists &, const Real *, int64_t, int64_t, const EdgeWeights<Real> &, Real *, int);
HPCGNN_INSTANTIATE(float)
HPCGNN_INSTANTIATE(double)
#undef HPCGNN_INSTANTIATE
template void grouped_linear(const Groups &, const float *, int64_t, const float *, int64_t, float *, int);
template void grouped_linear(const Groups &, const double *, int64_t, const double *, int64_t, double *, int);
template void grouped_linear_backward(const Groups &, const float *, int64_t, const float *, int64_t, const float *,
                                      float *, float *, int);
template void grouped_linear_backward(const Groups &, const double *, int64_t, const double *, int64_t, const double *,
                                      double *, double *, int);

} // namespace hpcgnn
