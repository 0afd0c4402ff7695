// Products of groups of rows with a matrix each, in one parallel region: the relations of a typed graph.
#include <vector>

#include "hpcgnn/grouped.h"

#include "cpu/shared/row_sums.h"

namespace hpcgnn {
namespace {

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

} // namespace

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

template void grouped_linear(const Groups &, const float *, int64_t, const float *, int64_t, float *, int);
template void grouped_linear(const Groups &, const double *, int64_t, const double *, int64_t, double *, int);
template void grouped_linear_backward(const Groups &, const float *, int64_t, const float *, int64_t, const float *,
                                      float *, float *, int);
template void grouped_linear_backward(const Groups &, const double *, int64_t, const double *, int64_t, const double *,
                                      double *, double *, int);

} // namespace hpcgnn
