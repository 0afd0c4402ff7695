// The link decoder: rows through their layers, then sums, relu and the product with the output weights pair by pair.
#include "hpcgnn/link_decoder.h"

#include <vector>

#include "cpu/shared/layer_parts.h"

namespace hpcgnn {
namespace {

// Rows behind their layer: out [count, O] = rows [count, Z] weight^T (+ bias), O behind padded registers of zeros.
template <typename Real> class Products {
public:
  Products(const LinkDecoder<Real> &decoder, const Real *rows, int64_t count, const Real *weight, const Real *bias,
           gemm::Rows<Real> out)
      : rows_{rows, decoder.width}, weight_{weight, decoder.width}, bias_(bias), out_(out),
        packed_(decoder.width, decoder.hidden), blocks_(count) {}

  void pack(const Team &team) { packed_.fill_transposed(team, weight_); }
  void multiply() {
    blocks_.each([&](Range block) {
      gemm::multiply<Real>(rows_.from(block.begin), block.size(), packed_.packed, {out_.from(block.begin), bias_});
    });
  }

private:
  gemm::Rows<const Real> rows_, weight_;
  const Real *bias_;
  gemm::Rows<Real> out_;
  PackedBuffer<Real> packed_;
  RowBlocks blocks_;
};

// The output weights, padded with zeros to whole registers as the rows are.
template <typename Real> RowBuffer<Real> padded_out(const LinkDecoder<Real> &decoder) {
  RowBuffer<Real> out(1, decoder.hidden);
  std::copy_n(decoder.out, decoder.hidden, out.memory.data());
  return out;
}

template <typename Real> class Forward {
public:
  Forward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, Real *logits)
      : decoder_(decoder), from_(saved.source.rows()), to_(saved.destination.rows()), logits_(logits),
        source_(decoder, decoder.source_rows, decoder.sources, decoder.source, decoder.bias, saved.source.rows()),
        destination_(decoder, decoder.destination_rows, decoder.destinations, decoder.destination, nullptr,
                     saved.destination.rows()),
        out_(padded_out(decoder)), blocks_(decoder.pairs) {}

  void operator()(const Team &team) {
    source_.pack(team);
    destination_.pack(team);
    team.barrier();
    source_.multiply();
    destination_.multiply();
    team.barrier();
    blocks_.each([&](Range block) {
      for (int64_t role = 0; role < decoder_.roles; ++role) { // the block's sources stay in the cache
        run({role * decoder_.pairs + block.begin, role * decoder_.pairs + block.end});
      }
    });
  }

private:
  void run(Range pairs) {
    constexpr int64_t L = simd::kLanes<Real>;
    const simd::Vector<Real> zero{};
    const int64_t width = simd::padded<Real>(decoder_.hidden);
    const Real *out = out_.memory.data();
    for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
      const Real *from = from_.at(decoder_.source_place[pair]), *to = to_.at(decoder_.destination_place[pair]);
      simd::Vector<Real> sum{};
      for (int64_t j = 0; j < width; j += L) {
        const simd::Vector<Real> hidden = simd::load(from + j) + simd::load(to + j);
        sum = simd::multiply_add(hidden < zero ? zero : hidden, simd::load(out + j), sum); // a NaN stays one
      }
      logits_[pair] = simd::sum<Real>(sum) + decoder_.out_bias[0];
    }
  }

  const LinkDecoder<Real> &decoder_;
  gemm::Rows<Real> from_, to_;
  Real *logits_;
  Products<Real> source_, destination_;
  RowBuffer<Real> out_;
  RowBlocks blocks_;
};

// From the gradient of rows behind their layer to that of the rows and of the layer's weight [O, Z] and, unless null,
// bias [O], which follows it.
template <typename Real> class ProductsBackward {
public:
  ProductsBackward(const LinkDecoder<Real> &decoder, const Real *rows, int64_t count, const Real *weight, bool has_bias,
                   Real *grad_rows)
      : gradient(count, decoder.hidden), width_(decoder.width), hidden_(decoder.hidden), rows_(rows),
        grad_rows_(grad_rows), weight_{weight, decoder.width}, has_bias_(has_bias), packed_(hidden_, width_),
        groups_(count), size_(hidden_ * (width_ + has_bias)), sums_(groups_.count() * size_), count_(count) {}

  RowBuffer<Real> gradient; // [count, O]

  void begin(const Team &team) {
    packed_.fill(team, weight_);
    const Range share = team.share(count_);
    std::fill_n(gradient.rows().at(share.begin), share.size() * gradient.stride, Real(0));
  }

  // rows: scratch for a block.
  void multiply(gemm::Rows<Real> rows) {
    groups_.each([&](int64_t group, Range block, bool first) {
      Real *grad_weight = sums_.data() + group * size_, *grad_bias = grad_weight + hidden_ * width_;
      const gemm::Rows<Real> from = gradient.rows().from(block.begin);
      for (int64_t i = 0; i < block.size(); ++i) { // a copy, readable beyond its end
        copy_row(rows.at(i), rows_ + (block.begin + i) * width_, width_);
      }
      gemm::multiply<Real>(from, block.size(), packed_.packed, {{grad_rows_ + block.begin * width_, width_}});
      gemm::multiply_transposed<Real>(from, hidden_, rows, width_, block.size(),
                                      {{grad_weight, width_}, nullptr, !first});
      if (has_bias_) {
        if (first) {
          std::fill_n(grad_bias, hidden_, Real(0));
        }
        add_rows<Real>(from, block.size(), hidden_, grad_bias);
      }
    });
  }

  // Adds to the gradients of the weight and the bias; returns the end of these.
  Real *sum(const Team &team, Real *grad_weights) {
    sum_groups(team, sums_.data(), groups_.count(), size_, true, grad_weights);
    return grad_weights + size_;
  }

private:
  int64_t width_, hidden_;
  const Real *rows_;
  Real *grad_rows_;
  gemm::Rows<const Real> weight_;
  bool has_bias_;
  PackedBuffer<Real> packed_;
  RowGroups groups_;
  int64_t size_;
  Buffer<Real> sums_;
  int64_t count_;
};

template <typename Real> class Backward {
public:
  Backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient, Real *grad_rows)
      : decoder_(decoder), from_(saved.source.rows()), to_(saved.destination.rows()), gradient_(gradient),
        source_(decoder, decoder.source_rows, decoder.sources, decoder.source, true, grad_rows),
        destination_(decoder, decoder.destination_rows, decoder.destinations, decoder.destination, false,
                     grad_rows + decoder.sources * decoder.width),
        out_(padded_out(decoder)), grad_out_(2, decoder.hidden) {}

  void operator()(const Team &team, gemm::Rows<Real> rows, Real *grad_weights) {
    source_.begin(team);
    destination_.begin(team);
    team.barrier();
    // Each thread has some columns of all pairs: many pairs add to the same rows, in the same order on any threads.
    const Range columns = team.share(simd::padded<Real>(decoder_.hidden), simd::kLanes<Real>);
    Real *total = grad_out_.rows().at(0), bias = 0;
    std::fill(total + columns.begin, total + columns.end, Real(0));
    for (int64_t begin = 0; begin < decoder_.pairs; begin += kBlockRows) {
      Real bias_of_block = 0;
      const Range block{begin, std::min(begin + kBlockRows, decoder_.pairs)};
      run(block, columns, bias_of_block);
      bias += bias_of_block;
    }
    team.barrier();
    source_.multiply(rows);
    destination_.multiply(rows);
    team.barrier();
    Real *end = destination_.sum(team, source_.sum(team, grad_weights));
    if (team.rank == 0) {
      add_row(total, decoder_.hidden, end);
      end[decoder_.hidden] += bias;
    }
  }

private:
  // The columns' share of a block of pairs. Sums of the output weights' gradients are first made for the block, as a
  // sum over all pairs at once would lose digits.
  void run(Range block, Range columns, Real &bias) {
    constexpr int64_t L = simd::kLanes<Real>;
    const simd::Vector<Real> zero{};
    const Real *out = out_.memory.data();
    Real *total = grad_out_.rows().at(0), *sum = grad_out_.rows().at(1);
    std::fill(sum + columns.begin, sum + columns.end, Real(0));
    for (int64_t role = 0; role < decoder_.roles; ++role) { // the block's sources stay in the cache
      for (int64_t pair = role * decoder_.pairs + block.begin; pair < role * decoder_.pairs + block.end; ++pair) {
        const int64_t u = decoder_.source_place[pair], v = decoder_.destination_place[pair];
        const Real *from = from_.at(u), *to = to_.at(v);
        Real *grad_from = source_.gradient.rows().at(u), *grad_to = destination_.gradient.rows().at(v);
        const simd::Vector<Real> gradient = simd::broadcast(gradient_[pair]);
        bias += gradient_[pair];
        for (int64_t j = columns.begin; j < columns.end; j += L) {
          const simd::Vector<Real> hidden = simd::load(from + j) + simd::load(to + j);
          const simd::Vector<Real> back =
              hidden <= zero ? zero : gradient * simd::load(out + j); // as torch: NaN passes
          simd::store(sum + j, simd::multiply_add(gradient, hidden < zero ? zero : hidden, simd::load(sum + j)));
          simd::store(grad_from + j, simd::load(grad_from + j) + back);
          simd::store(grad_to + j, simd::load(grad_to + j) + back);
        }
      }
    }
    for (int64_t j = columns.begin; j < columns.end; ++j) {
      total[j] += sum[j];
    }
  }

  const LinkDecoder<Real> &decoder_;
  gemm::Rows<Real> from_, to_;
  const Real *gradient_;
  ProductsBackward<Real> source_, destination_;
  RowBuffer<Real> out_, grad_out_;
};

} // namespace

template <typename Real>
std::unique_ptr<LinkDecoderSaved<Real>> link_decoder_forward(const LinkDecoder<Real> &decoder, Real *logits,
                                                             int threads) {
  auto saved = std::make_unique<LinkDecoderSaved<Real>>();
  saved->source = {decoder.sources, decoder.hidden};
  saved->destination = {decoder.destinations, decoder.hidden};
  Forward<Real> forward(decoder, *saved, logits);
  in_parallel(threads, [&](const Team &team) { forward(team); });
  return saved;
}

template <typename Real>
void link_decoder_backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient,
                           Real *grad_rows, Real *grad_weights, int threads) {
  Backward<Real> backward(decoder, saved, gradient, grad_rows);
  std::vector<RowBuffer<Real>> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(kBlockRows, decoder.width);
  }
  in_parallel(threads, [&](const Team &team) { backward(team, scratch[team.rank].rows(), grad_weights); });
}

template <typename Real>
double link_loss(const Real *logits, int64_t roles, int64_t pairs, int64_t batch, Real *gradient) {
  double sum = 0;
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch));
  for (int64_t role = 0; role < roles; ++role) {
    const double sign = role == 0 ? -1.0 : 1.0, share = role == 0 ? scale : scale / static_cast<double>(roles - 1);
    double of_role = 0;
    for (int64_t i = role * pairs; i < (role + 1) * pairs; ++i) {
      const double x = sign * static_cast<double>(logits[i]), small = std::exp(-std::fabs(x));
      of_role += std::max(x, 0.0) + std::log1p(small);
      gradient[i] = static_cast<Real>(sign * share * (x >= 0 ? 1.0 : small) / (1.0 + small));
    }
    sum += share * of_role;
  }
  return sum;
}

template double link_loss(const float *, int64_t, int64_t, int64_t, float *);
template double link_loss(const double *, int64_t, int64_t, int64_t, double *);
template std::unique_ptr<LinkDecoderSaved<float>> link_decoder_forward(const LinkDecoder<float> &, float *, int);
template std::unique_ptr<LinkDecoderSaved<double>> link_decoder_forward(const LinkDecoder<double> &, double *, int);
template void link_decoder_backward(const LinkDecoder<float> &, const LinkDecoderSaved<float> &, const float *, float *,
                                    float *, int);
template void link_decoder_backward(const LinkDecoder<double> &, const LinkDecoderSaved<double> &, const double *,
                                    double *, double *, int);

} // namespace hpcgnn
