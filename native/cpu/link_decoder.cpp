// The link decoder: both products, relu and the product with the output weights, block by block of pairs.
#include "hpcgnn/link_decoder.h"

#include <vector>

#include "cpu/shared/layer_parts.h"

namespace hpcgnn {
namespace {

// out . relu(hidden), which takes hidden's place.
template <typename Real> Real score(Real *hidden, const Real *out, int64_t width) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < width; ++j) {
    hidden[j] = hidden[j] < Real(0) ? Real(0) : hidden[j]; // a NaN stays one
    sum += hidden[j] * out[j];
  }
  return sum;
}

// Gradient of what relu took, in grad and added to grad_source; adds to the output weights' gradient.
template <typename Real>
void score_backward(Real gradient, const Real *hidden, const Real *out, int64_t width, Real *grad, Real *grad_source,
                    Real *grad_out) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    grad_out[j] += gradient * hidden[j];
    const Real g = hidden[j] > Real(0) ? gradient * out[j] : Real(0);
    grad[j] = g;
    grad_source[j] += g;
  }
}

template <typename Real> class Forward {
public:
  Forward(const LinkDecoder<Real> &decoder, LinkDecoderSaved<Real> &saved, Real *logits)
      : decoder_(decoder), saved_(saved), logits_(logits), source_(decoder.width, decoder.hidden),
        destination_(decoder.width, decoder.hidden), blocks_(decoder.pairs) {}

  void operator()(const Team &team, gemm::Rows<Real> scratch) {
    source_.fill_transposed(team, {decoder_.source, decoder_.width});
    destination_.fill_transposed(team, {decoder_.destination, decoder_.width});
    team.barrier();
    blocks_.each([&](Range block) { run(block, scratch); });
  }

private:
  void run(Range block, gemm::Rows<Real> given) {
    const gemm::Rows<const Real> embedding{decoder_.embedding, decoder_.width};
    gemm::multiply<Real>(embedding.from(block.begin), block.size(), source_.packed, {given, decoder_.bias});
    for (int64_t role = 1; role < decoder_.roles; ++role) {
      const int64_t pair = (role - 1) * decoder_.pairs + block.begin;
      const gemm::Rows<Real> hidden = saved_.hidden.rows().from(pair);
      for (int64_t i = 0; i < block.size(); ++i) {
        copy_row<Real>(hidden.at(i), given.at(i), decoder_.hidden);
      }
      gemm::multiply<Real>(embedding.from(decoder_.pairs + pair), block.size(), destination_.packed,
                           {hidden, nullptr, true});
      for (int64_t i = 0; i < block.size(); ++i) {
        logits_[pair + i] = score(hidden.at(i), decoder_.out, decoder_.hidden) + decoder_.out_bias[0];
      }
    }
  }

  const LinkDecoder<Real> &decoder_;
  LinkDecoderSaved<Real> &saved_;
  Real *logits_;
  PackedBuffer<Real> source_, destination_;
  RowBlocks blocks_;
};

// Where the gradients of the weights lie.
template <typename Real> struct Gradients {
  Real *source, *bias, *destination, *out, *out_bias;

  Gradients(const LinkDecoder<Real> &decoder, Real *at)
      : source(at), bias(source + int64_t(decoder.hidden) * decoder.width), destination(bias + decoder.hidden),
        out(destination + int64_t(decoder.hidden) * decoder.width), out_bias(out + decoder.hidden) {}
};

template <typename Real> class Backward {
public:
  Backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient,
           Real *grad_embedding)
      : decoder_(decoder), saved_(saved), gradient_(gradient), grad_embedding_(grad_embedding),
        source_(decoder.hidden, decoder.width), destination_(decoder.hidden, decoder.width), groups_(decoder.pairs),
        size_(decoder.gradient_size()), sums_(groups_.count() * size_) {}

  struct Scratch {
    RowBuffer<Real> source, destination, embedding;
    explicit Scratch(const LinkDecoder<Real> &decoder)
        : source(kBlockRows, decoder.hidden), destination(kBlockRows, decoder.hidden),
          embedding(kBlockRows, decoder.width) {}
  };

  void operator()(const Team &team, const Scratch &scratch, Real *grad_weights) {
    source_.fill(team, {decoder_.source, decoder_.width});
    destination_.fill(team, {decoder_.destination, decoder_.width});
    team.barrier();
    groups_.each([&](int64_t group, Range block, bool first) {
      Real *sums = sums_.data() + group * size_;
      const Gradients<Real> to(decoder_, sums);
      if (first) {
        std::fill_n(to.bias, decoder_.hidden, Real(0));
        std::fill(to.out, sums + size_, Real(0));
      }
      run(block, scratch, to, !first);
    });
    team.barrier();
    sum_groups(team, sums_.data(), groups_.count(), size_, true, grad_weights);
  }

private:
  void run(Range block, const Scratch &scratch, const Gradients<Real> &to, bool add) {
    const gemm::Rows<Real> source = scratch.source.rows(), destination = scratch.destination.rows();
    for (int64_t i = 0; i < block.size(); ++i) {
      std::fill_n(source.at(i), decoder_.hidden, Real(0));
    }
    for (int64_t role = 1; role < decoder_.roles; ++role) {
      const int64_t pair = (role - 1) * decoder_.pairs + block.begin;
      for (int64_t i = 0; i < block.size(); ++i) {
        const Real gradient = gradient_[pair + i];
        score_backward(gradient, saved_.hidden.rows().at(pair + i), decoder_.out, decoder_.hidden, destination.at(i),
                       source.at(i), to.out);
        to.out_bias[0] += gradient;
      }
      through(destination, decoder_.pairs + pair, block.size(), scratch, destination_, to.destination, add || role > 1);
    }
    through(source, block.begin, block.size(), scratch, source_, to.source, add);
    add_rows<Real>(source, block.size(), decoder_.hidden, to.bias);
  }

  // From the gradient of a product to those of its rows (from `first` on) and its weight.
  void through(gemm::Rows<Real> gradient, int64_t first, int64_t count, const Scratch &scratch,
               const PackedBuffer<Real> &weight, Real *grad_weight, bool add) {
    const int64_t width = decoder_.width;
    const gemm::Rows<Real> rows = scratch.embedding.rows(); // a copy, readable beyond its end
    for (int64_t i = 0; i < count; ++i) {
      copy_row(rows.at(i), decoder_.embedding + (first + i) * width, width);
    }
    gemm::multiply<Real>(gradient, count, weight.packed, {{grad_embedding_ + first * width, width}});
    gemm::multiply_transposed<Real>(gradient, decoder_.hidden, rows, width, count,
                                    {{grad_weight, width}, nullptr, add});
  }

  const LinkDecoder<Real> &decoder_;
  const LinkDecoderSaved<Real> &saved_;
  const Real *gradient_;
  Real *grad_embedding_;
  PackedBuffer<Real> source_, destination_;
  RowGroups groups_;
  int64_t size_;
  Buffer<Real> sums_;
};

} // namespace

template <typename Real>
std::unique_ptr<LinkDecoderSaved<Real>> link_decoder_forward(const LinkDecoder<Real> &decoder, Real *logits,
                                                             int threads) {
  auto saved = std::make_unique<LinkDecoderSaved<Real>>();
  saved->hidden = {(decoder.roles - 1) * decoder.pairs, decoder.hidden};
  Forward<Real> forward(decoder, *saved, logits);
  std::vector<RowBuffer<Real>> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(kBlockRows, decoder.hidden);
  }
  in_parallel(threads, [&](const Team &team) { forward(team, scratch[team.rank].rows()); });
  return saved;
}

template <typename Real>
void link_decoder_backward(const LinkDecoder<Real> &decoder, const LinkDecoderSaved<Real> &saved, const Real *gradient,
                           Real *grad_embedding, Real *grad_weights, int threads) {
  if (decoder.pairs == 0) {
    return;
  }
  Backward<Real> backward(decoder, saved, gradient, grad_embedding);
  std::vector<typename Backward<Real>::Scratch> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(decoder);
  }
  in_parallel(threads, [&](const Team &team) { backward(team, scratch[team.rank], grad_weights); });
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
