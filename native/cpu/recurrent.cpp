// Recurrent update of node memory (gated recurrent unit: Cho et al., 2014), the rows with mail only: gather, time
// encoding, both products and the gates, block by block.
#include "hpcgnn/recurrent.h"

#include <vector>

#include "cpu/shared/layer_parts.h"
#include "hpcgnn/base/activation.h"
#include "hpcgnn/encode.h"

namespace hpcgnn {
namespace {

// given [3 D]: both products for reset and update, the mail's for the candidate; own [D]: the state's for the
// candidate. gate [4 D]: reset, update, candidate and own, which backward needs.
template <typename Real>
void gated_forward(const Real *given, const Real *own, const Real *state, int64_t width, Real *gate, Real *out) {
  in_registers<Real>(width, [&](int64_t begin, int64_t size) {
#pragma omp simd
    for (int64_t j = begin; j < begin + size; ++j) {
      const Real reset = logistic(given[j]);
      const Real update = logistic(given[width + j]);
      const Real candidate = hyperbolic_tangent(given[2 * width + j] + reset * own[j]);
      gate[j] = reset;
      gate[width + j] = update;
      gate[2 * width + j] = candidate;
      gate[3 * width + j] = own[j];
      out[j] = candidate + update * (state[j] - candidate);
    }
  });
}

// grad [4 D]: those of the products with the mail, then that of the state's part of the candidate.
template <typename Real>
void gated_backward(const Real *gradient, const Real *gate, const Real *state, int64_t width, Real *grad) {
  in_registers<Real>(width, [&](int64_t begin, int64_t size) {
#pragma omp simd
    for (int64_t j = begin; j < begin + size; ++j) {
      const Real reset = gate[j], update = gate[width + j], candidate = gate[2 * width + j], g = gradient[j];
      const Real before = g * (Real(1) - update) * (Real(1) - candidate * candidate);
      grad[j] = before * gate[3 * width + j] * reset * (Real(1) - reset);
      grad[width + j] = g * (state[j] - candidate) * update * (Real(1) - update);
      grad[2 * width + j] = before;
      grad[3 * width + j] = before * reset;
    }
  });
}

template <typename Real> void plain_forward(const Real *given, int64_t width, Real *gate, Real *out) {
  in_registers<Real>(width, [&](int64_t begin, int64_t size) {
#pragma omp simd
    for (int64_t j = begin; j < begin + size; ++j) {
      gate[j] = out[j] = hyperbolic_tangent(given[j]);
    }
  });
}

template <typename Real> void plain_backward(const Real *gradient, const Real *gate, int64_t width, Real *grad) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    grad[j] = gradient[j] * (Real(1) - gate[j] * gate[j]);
  }
}

template <typename Real> class Forward {
public:
  Forward(const Recurrent<Real> &cell, RecurrentSaved<Real> &saved, const TimeTable &table, Real *out)
      : cell_(cell), saved_(saved), table_(table), out_(out), weight_(cell.gate_width(), cell.row_width()),
        bias_(cell.gate_width()), first_bias_(cell.gate_width()), given_(cell.row_width(), cell.gate_width()),
        own_(cell.state_width, cell.own_width()), blocks_(saved.whole), first_blocks_(saved.count - saved.whole) {}

  struct Scratch {
    RowBuffer<Real> given, own;
    explicit Scratch(const Recurrent<Real> &cell)
        : given(kBlockRows, cell.gate_width()), own(kBlockRows, cell.own_width()) {}
  };

  void operator()(const Team &team, const Scratch &scratch) {
    join(team);
    own_.fill_transposed(team, {cell_.weight_hh + cell_.added_width() * cell_.state_width, cell_.state_width});
    keep(team);
    team.barrier();
    given_.fill_transposed(team, weight_.rows());
    team.barrier();
    blocks_.each([&](Range block) { run(block, false, scratch); });
    first_blocks_.each(
        [&](Range block) { run({saved_.whole + block.begin, saved_.whole + block.end}, true, scratch); });
  }

private:
  // Weights of a whole row, and biases: those of the mail and, for gates that add both products, those of the state.
  // That of first mails has the part of the time 0, too.
  void join(const Team &team) {
    const Range part = team.share(cell_.gate_width());
    const RowBuffer<Real> now(1, table_.width());
    table_.encode(0, now.rows().at(0));
    const int64_t in = cell_.in_width(), state = cell_.state_width;
    for (int64_t gate = part.begin; gate < part.end; ++gate) {
      Real *weight = weight_.rows().at(gate), *of_state = weight + cell_.state_at();
      const bool added = gate < cell_.added_width();
      std::fill_n(weight, cell_.row_width(), Real(0));
      copy_row(weight, cell_.weight_ih + gate * in, in);
      if (added) {
        add_row(cell_.weight_hh + gate * state, state, of_state);
      }
      Real bias = cell_.bias_ih[gate] + (added ? cell_.bias_hh[gate] : Real(0));
      bias_.data()[gate] = bias;
      for (int32_t j = 0; j < cell_.time_width; ++j) {
        bias += weight[cell_.mail_width + j] * now.rows().at(0)[j];
      }
      first_bias_.data()[gate] = bias;
    }
  }

  // Rows without mail.
  void keep(const Team &team) {
    const Range part = team.share(cell_.rows);
    for (int64_t i = part.begin; i < part.end; ++i) {
      if (!cell_.has_mail(i)) {
        copy_row(out_ + i * cell_.state_width, cell_.state + cell_.row(i) * cell_.state_width, cell_.state_width);
      }
    }
  }

  void run(Range block, bool are_first, const Scratch &scratch) {
    const int64_t width = cell_.state_width;
    const gemm::Rows<Real> row = saved_.row.rows().from(block.begin), state = row.from(0, cell_.state_at());
    const gemm::Rows<Real> given = scratch.given.rows(), own = scratch.own.rows();
    for (int64_t i = 0; i < block.size(); ++i) {
      gather(block.begin + i, row.at(i));
    }
    if (are_first) {
      gemm::multiply<Real>(row.from(0, width), block.size(), given_.packed, width, cell_.mail_width - width,
                           {given, first_bias_.data()});
    } else {
      gemm::multiply<Real>(row, block.size(), given_.packed, {given, bias_.data()});
    }
    if (cell_.own_width() > 0) {
      gemm::multiply<Real>(state, block.size(), own_.packed, 0, are_first ? 0 : width,
                           {own, cell_.bias_hh + cell_.added_width()});
    }
    for (int64_t i = 0; i < block.size(); ++i) {
      Real *gate = saved_.gate.rows().at(block.begin + i), *out = out_ + saved_.place.data()[block.begin + i] * width;
      if (cell_.gates == 3) {
        gated_forward(given.at(i), own.at(i), state.at(i), width, gate, out);
      } else {
        plain_forward(given.at(i), width, gate, out);
      }
    }
  }

  void gather(int64_t i, Real *row) {
    const int64_t from = cell_.row(saved_.place.data()[i]), dt = cell_.dt(from);
    saved_.dt.data()[i] = dt;
    copy_row(row, cell_.mail + from * cell_.mail_width, cell_.mail_width);
    table_.encode(dt, row + cell_.mail_width); // writes a little too far
    if (!cell_.state_first) {
      copy_row(row + cell_.in_width(), cell_.state + from * cell_.state_width, cell_.state_width);
    }
  }

  const Recurrent<Real> &cell_;
  RecurrentSaved<Real> &saved_;
  const TimeTable &table_;
  Real *out_;
  RowBuffer<Real> weight_; // [gates D, row_width]
  Buffer<Real> bias_, first_bias_;
  PackedBuffer<Real> given_, own_;
  RowBlocks blocks_, first_blocks_;
};

template <typename Real> class Backward {
public:
  Backward(const Recurrent<Real> &cell, const RecurrentSaved<Real> &saved, const TimeTable &table, const Real *gradient,
           bool with_phase)
      : cell_(cell), saved_(saved), table_(table), gradient_(gradient), with_phase_(with_phase),
        time_(cell.gate_width(), with_phase ? cell.time_width : 0), groups_(saved.whole),
        size_(Sums(cell, nullptr).end(cell, with_phase) - Sums(cell, nullptr).row), sums_(groups_.count() * size_),
        sum_(size_) {}

  struct Scratch {
    RowBuffer<Real> grad, time, sine;
    Scratch(const Recurrent<Real> &cell, const TimeTable &table)
        : grad(kBlockRows, (cell.gates + 1) * cell.state_width), time(kBlockRows, cell.time_width),
          sine(2, table.width()) {}
  };

  void operator()(const Team &team, const Scratch &scratch, Real *grad_weights) {
    time_.fill(team, {cell_.weight_ih + cell_.mail_width, cell_.in_width()});
    team.barrier();
    groups_.each([&](int64_t group, Range block, bool first) {
      const Sums to(cell_, sums_.data() + group * size_);
      if (first) {
        std::fill(to.bias, to.row + size_, Real(0));
      }
      run(block, scratch, to, !first);
      if (first) { // the group's share of the first mails, too
        const Range part = part_of(saved_.count - saved_.whole, group, groups_.count(), kRowUnit);
        for (int64_t begin = part.begin; begin < part.end; begin += kBlockRows) {
          run_first({saved_.whole + begin, saved_.whole + std::min(begin + kBlockRows, part.end)}, scratch, to);
        }
      }
    });
    team.barrier();
    sum_groups(team, sums_.data(), groups_.count(), size_, false, sum_.data());
    team.barrier();
    add(team, Sums(cell_, sum_.data()), grad_weights);
  }

private:
  // Where the gradients of the joined weights lie: of a whole row [gates D, row_width], of the state for the candidate
  // [own_width, D], of the biases [gates D], [own_width], of the former from first mails alone [gates D], of the phase.
  struct Sums {
    Real *row, *own, *bias, *own_bias, *first_bias, *phase;
    Sums(const Recurrent<Real> &cell, Real *at)
        : row(at), own(row + cell.gate_width() * cell.row_width()), bias(own + cell.own_width() * cell.state_width),
          own_bias(bias + cell.gate_width()), first_bias(own_bias + cell.own_width()),
          phase(first_bias + cell.gate_width()) {}
    Real *end(const Recurrent<Real> &cell, bool with_phase) const { return phase + (with_phase ? cell.time_width : 0); }
  };

  void run(Range block, const Scratch &scratch, const Sums &to, bool add) {
    const int64_t state = cell_.state_width, gates = cell_.gate_width(), count = block.size();
    const gemm::Rows<Real> grad = scratch.grad.rows(), row = saved_.row.rows().from(block.begin);
    through_gates(block, grad);
    gemm::multiply_transposed<Real>(grad, gates, row, cell_.row_width(), count,
                                    {{to.row, cell_.row_width()}, nullptr, add});
    add_rows<Real>(grad, count, gates, to.bias);
    if (cell_.own_width() > 0) {
      // The candidate meets the state's product through the reset gate, so its gradients differ for the two products.
      const gemm::Rows<Real> own = grad.from(0, gates);
      gemm::multiply_transposed<Real>(own, state, row.from(0, cell_.state_at()), state, count,
                                      {{to.own, state}, nullptr, add});
      add_rows<Real>(own, count, state, to.own_bias);
    }
    if (with_phase_) {
      add_phase(block, scratch, to.phase);
    }
  }

  // First mails: their rows are 0 before what the mail adds, and behind it the same time.
  void run_first(Range block, const Scratch &scratch, const Sums &to) {
    const int64_t state = cell_.state_width, gates = cell_.gate_width(), count = block.size();
    const gemm::Rows<Real> grad = scratch.grad.rows(), row = saved_.row.rows().from(block.begin, state);
    through_gates(block, grad);
    gemm::multiply_transposed<Real>(grad, gates, row, cell_.mail_width - state, count,
                                    {{to.row + state, cell_.row_width()}, nullptr, true});
    add_rows<Real>(grad, count, gates, to.first_bias);
    if (cell_.own_width() > 0) {
      add_rows<Real>(grad.from(0, gates), count, state, to.own_bias);
    }
    if (with_phase_) {
      add_phase(block, scratch, to.phase);
    }
  }

  // From the joined weights to weight_ih, weight_hh, bias_ih, bias_hh, phase.
  void add(const Team &team, const Sums &from, Real *grad_weights) const {
    const int64_t in = cell_.in_width(), state = cell_.state_width, gates = cell_.gate_width();
    const Range part = team.share(gates);
    Real *to_hh = grad_weights + gates * in, *bias_ih = to_hh + gates * state, *bias_hh = bias_ih + gates;
    const RowBuffer<Real> now(1, table_.width());
    table_.encode(0, now.rows().at(0));
    for (int64_t gate = part.begin; gate < part.end; ++gate) {
      const Real *row = from.row + gate * cell_.row_width();
      const int64_t own = gate - cell_.added_width();
      const Real bias = from.bias[gate] + from.first_bias[gate];
      add_row(row, in, grad_weights + gate * in);
      Real *time = grad_weights + gate * in + cell_.mail_width;
      for (int32_t j = 0; j < cell_.time_width; ++j) {
        time[j] += from.first_bias[gate] * now.rows().at(0)[j];
      }
      add_row(own < 0 ? row + cell_.state_at() : from.own + own * state, state, to_hh + gate * state);
      bias_ih[gate] += bias;
      bias_hh[gate] += own < 0 ? bias : from.own_bias[own];
    }
    if (with_phase_ && team.rank == 0) {
      add_row(from.phase, cell_.time_width, bias_hh + gates);
    }
  }

  void through_gates(Range block, gemm::Rows<Real> grad) {
    const int64_t width = cell_.state_width;
    for (int64_t i = 0; i < block.size(); ++i) {
      const int64_t at = block.begin + i;
      const Real *gradient = gradient_ + saved_.place.data()[at] * width, *gate = saved_.gate.rows().at(at);
      if (cell_.gates == 3) {
        gated_backward(gradient, gate, saved_.row.rows().at(at) + cell_.state_at(), width, grad.at(i));
      } else {
        plain_backward(gradient, gate, width, grad.at(i));
      }
    }
  }

  void add_phase(Range block, const Scratch &scratch, Real *phase) {
    const gemm::Rows<Real> time = scratch.time.rows();
    gemm::multiply<Real>(scratch.grad.rows(), block.size(), time_.packed, {time});
    Real *cosine = scratch.sine.rows().at(0), *sine = scratch.sine.rows().at(1);
    for (int64_t i = 0; i < block.size(); ++i) {
      table_.encode(saved_.dt.data()[block.begin + i], cosine, sine);
      const Real *gradient = time.at(i);
#pragma omp simd
      for (int32_t j = 0; j < cell_.time_width; ++j) {
        phase[j] -= sine[j] * gradient[j];
      }
    }
  }

  const Recurrent<Real> &cell_;
  const RecurrentSaved<Real> &saved_;
  const TimeTable &table_;
  const Real *gradient_;
  bool with_phase_;
  PackedBuffer<Real> time_;
  RowGroups groups_;
  int64_t size_;
  Buffer<Real> sums_, sum_;
};

} // namespace

template <typename Real>
std::unique_ptr<RecurrentSaved<Real>> recurrent_forward(const Recurrent<Real> &cell, Real *out, int threads) {
  auto saved = std::make_unique<RecurrentSaved<Real>>();
  saved->place = Buffer<int64_t>(cell.rows);
  int64_t last = cell.rows; // from which on first mails come, in the opposite order
  for (int64_t i = 0; i < cell.rows; ++i) {
    if (cell.has_mail(i)) {
      const bool is_first = cell.is_first(i);
      saved->place.data()[is_first ? --last : saved->whole++] = i;
    }
  }
  saved->count = saved->whole + cell.rows - last;
  std::copy(saved->place.data() + last, saved->place.data() + cell.rows, saved->place.data() + saved->whole);
  const TimeTable table(cell.frequency, cell.phase, cell.time_width);
  saved->dt = Buffer<int64_t>(saved->count);
  saved->row = {saved->count, std::max(cell.row_width(), cell.mail_width + table.width())};
  saved->gate = {saved->count, (cell.gates == 3 ? 4 : 1) * cell.state_width};
  Forward<Real> forward(cell, *saved, table, out);
  std::vector<typename Forward<Real>::Scratch> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(cell);
  }
  in_parallel(threads, [&](const Team &team) { forward(team, scratch[team.rank]); });
  return saved;
}

template <typename Real>
void recurrent_backward(const Recurrent<Real> &cell, const RecurrentSaved<Real> &saved, const Real *gradient,
                        bool with_phase, Real *grad_weights, int threads) {
  if (saved.count == 0) {
    return;
  }
  const TimeTable table(cell.frequency, cell.phase, cell.time_width);
  Backward<Real> backward(cell, saved, table, gradient, with_phase);
  std::vector<typename Backward<Real>::Scratch> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(cell, table);
  }
  in_parallel(threads, [&](const Team &team) { backward(team, scratch[team.rank], grad_weights); });
}

template std::unique_ptr<RecurrentSaved<float>> recurrent_forward(const Recurrent<float> &, float *, int);
template std::unique_ptr<RecurrentSaved<double>> recurrent_forward(const Recurrent<double> &, double *, int);
template void recurrent_backward(const Recurrent<float> &, const RecurrentSaved<float> &, const float *, bool, float *,
                                 int);
template void recurrent_backward(const Recurrent<double> &, const RecurrentSaved<double> &, const double *, bool,
                                 double *, int);

} // namespace hpcgnn
