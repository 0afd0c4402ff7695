// The temporal attention layer: blocks of roots go through query product, attention, merge product, dropout, relu and
// layer norm, and back.
#include "hpcgnn/attention_layer.h"

#include <vector>

#include "cpu/attention_layer/root.h"
#include "cpu/attention_layer/weights.h"
#include "cpu/shared/layer_parts.h"

namespace hpcgnn {
namespace {

// A weight of every head [depth, width], for products.
template <typename Real> class PackedHeads {
public:
  PackedHeads(const AttentionLayer<Real> &layer, int64_t depth, int64_t width) {
    for (int32_t head = 0; head < layer.heads; ++head) {
      heads_.emplace_back(depth, width);
    }
  }
  PackedBuffer<Real> &of(int64_t head) { return heads_[head]; }

private:
  std::vector<PackedBuffer<Real>> heads_;
};

// Forward of one layer, shared by the threads.
template <typename Real> class Forward {
public:
  Forward(const AttentionLayer<Real> &layer, AttentionSaved<Real> &saved, Real *out)
      : layer_(layer), saved_(saved), out_(out), table_(layer.frequency, layer.phase, layer.time_width),
        weights_(layer, table_), asks_(layer.node_width + 1, layer.out_width),
        own_(layer.node_width + 1, layer.out_width), merge_(layer.out_width, layer.out_width),
        key_(layer, layer.head_width(), layer.width()), value_(layer, layer.width(), layer.head_width()),
        merged_(saved.owners, layer.out_width), owner_blocks_(saved.owners), root_blocks_(layer.roots),
        threshold_(dropout_threshold(layer.dropout)), scale_(static_cast<Real>(1.0 / (1.0 - layer.dropout))) {}

  void operator()(const Team &team, RootAttention<Real> &attention) {
    weights_.compose(team);
    team.barrier();
    asks_.fill_transposed(team, weights_.asks());
    own_.fill_transposed(team, weights_.own());
    merge_.fill_transposed(team, weights_.merge());
    for (int32_t head = 0; head < layer_.heads; ++head) {
      key_.of(head).fill(team, weights_.key(head));
      value_.of(head).fill_transposed(team, weights_.value(head));
    }
    team.barrier();
    owner_blocks_.each([&](Range block) { ask(block); });
    team.barrier();
    root_blocks_.each([&](Range block) { run(block, attention); });
  }

  const TimeTable &table() const { return table_; }

private:
  void ask(Range block) {
    const int64_t depth = layer_.node_width;
    const gemm::Rows<Real> own = saved_.own.rows().from(block.begin);
    for (int64_t i = 0; i < block.size(); ++i) {
      copy_row(own.at(i), layer_.node + saved_.node.data()[block.begin + i] * depth, depth);
      own.at(i)[depth] = Real(1);
    }
    const gemm::Rows<Real> asked = saved_.asked.rows().from(block.begin), query = saved_.query.rows().from(block.begin);
    gemm::multiply<Real>(own, block.size(), asks_.packed, {asked});
    gemm::multiply<Real>(own, block.size(), own_.packed, {merged_.rows().from(block.begin)});
    for (int32_t head = 0; head < layer_.heads; ++head) {
      gemm::multiply<Real>(asked.from(0, head * layer_.head_width()), block.size(), key_.of(head).packed,
                           {query.from(0, head * layer_.width())});
    }
  }

  void run(Range block, RootAttention<Real> &attention) {
    const gemm::Rows<Real> rows = saved_.row.rows().from(block.begin);
    const gemm::Rows<Real> hidden = saved_.hidden.rows().from(block.begin);
    const gemm::Rows<Real> valued = saved_.valued.rows().from(block.begin);
    for (int64_t i = 0; i < block.size(); ++i) {
      const int64_t root = block.begin + i, owner = saved_.owner.data()[root];
      copy_row(hidden.at(i), merged_.rows().at(owner), layer_.out_width);
      attention.forward(root, saved_.query.rows().at(owner), rows.at(i),
                        saved_.weight.data() + root * layer_.heads * layer_.slots);
    }
    for (int32_t head = 0; head < layer_.heads; ++head) {
      gemm::multiply<Real>(rows.from(0, head * layer_.width()), block.size(), value_.of(head).packed,
                           {valued.from(0, head * layer_.head_width())});
    }
    gemm::multiply<Real>(valued, block.size(), merge_.packed, {hidden, nullptr, true});
    for (int64_t i = 0; i < block.size(); ++i) {
      finish(block.begin + i, hidden.at(i));
    }
  }

  void finish(int64_t root, Real *hidden) {
    if (layer_.identity != nullptr) {
      dropout_row(layer_.random, static_cast<uint64_t>(layer_.identity[root]), layer_.out_width, threshold_, scale_,
                  hidden);
    }
#pragma omp simd
    for (int32_t j = 0; j < layer_.out_width; ++j) {
      hidden[j] = hidden[j] < Real(0) ? Real(0) : hidden[j]; // a NaN stays one
    }
    normalize(hidden, layer_.out_width, layer_.eps, layer_.norm_weight, layer_.norm_bias,
              saved_.statistics.data() + 2 * root, out_ + root * layer_.out_width);
  }

  const AttentionLayer<Real> &layer_;
  AttentionSaved<Real> &saved_;
  Real *out_;
  TimeTable table_;
  AttentionWeights<Real> weights_;
  PackedBuffer<Real> asks_, own_, merge_;
  PackedHeads<Real> key_, value_;
  RowBuffer<Real> merged_; // [V, Z] the own row's part of hidden
  RowBlocks owner_blocks_, root_blocks_;
  uint32_t threshold_;
  Real scale_;
};

template <typename Real> class Backward {
public:
  Backward(const AttentionLayer<Real> &layer, const AttentionSaved<Real> &saved, const Real *gradient, bool with_phase)
      : layer_(layer), saved_(saved), gradient_(gradient), with_phase_(with_phase),
        table_(layer.frequency, layer.phase, layer.time_width), weights_(layer, table_),
        merge_(layer.out_width, layer.out_width), own_(layer.out_width, layer.node_width),
        asks_(layer.out_width, layer.node_width), key_(layer, layer.width(), layer.head_width()),
        value_(layer, layer.head_width(), layer.width()), grad_hidden_(layer.roots, layer.out_width),
        grad_row_(layer.roots, layer.query_width()), grad_query_(layer.roots, layer.query_width()),
        grad_own_(saved.owners, layer.node_width), grad_score_(layer.roots * layer.heads * layer.slots),
        by_root_(layer.roots), by_owner_(saved.owners), owner_size_(Gradients<Real>(layer, nullptr).of_owners()),
        root_size_(Gradients<Real>(layer, nullptr).of_roots(with_phase, layer.time_width)),
        owner_sums_(by_owner_.count() * owner_size_), root_sums_(by_root_.count() * root_size_),
        sum_(owner_size_ + root_size_) {}

  // Thread-private memory of a block.
  struct Scratch {
    RowBuffer<Real> hidden, query, asked, valued;
    RootAttention<Real> attention;
    Scratch(const AttentionLayer<Real> &layer, const TimeTable &table)
        : hidden(kBlockRows, layer.out_width), query(kBlockRows, layer.query_width()),
          asked(kBlockRows, layer.out_width), valued(kBlockRows, layer.out_width), attention(layer, table) {}
  };

  void operator()(const Team &team, Scratch &scratch, const AttentionTranspose &transpose, Real *grad_node,
                  Real *grad_weights) {
    weights_.compose(team);
    team.barrier();
    merge_.fill(team, weights_.merge());
    own_.fill(team, weights_.own());
    asks_.fill(team, weights_.asks());
    for (int32_t head = 0; head < layer_.heads; ++head) {
      key_.of(head).fill_transposed(team, weights_.key(head));
      value_.of(head).fill(team, weights_.value(head));
    }
    team.barrier();
    by_root_.each([&](int64_t group, Range block, bool first) {
      Real *sums = root_sums_.data() + group * root_size_;
      const Gradients<Real> to(layer_, sums - owner_size_);
      if (first) {
        std::fill(to.norm_weight, sums + root_size_, Real(0));
      }
      run(block, scratch, to, !first);
    });
    team.barrier();
    by_owner_.each([&](int64_t group, Range block, bool first) {
      own(block, scratch, transpose, Gradients<Real>(layer_, owner_sums_.data() + group * owner_size_), !first);
    });
    team.barrier();
    sum_groups(team, owner_sums_.data(), by_owner_.count(), owner_size_, false, sum_.data());
    sum_groups(team, root_sums_.data(), by_root_.count(), root_size_, false, sum_.data() + owner_size_);
    nodes(transpose, grad_node);
    team.barrier();
    weights_.backward(team, {layer_, sum_.data()}, with_phase_, grad_weights);
  }

  const TimeTable &table() const { return table_; }

private:
  void run(Range block, Scratch &scratch, const Gradients<Real> &to, bool add) {
    const int64_t width = layer_.width(), out = layer_.out_width, count = block.size();
    const gemm::Rows<Real> hidden = grad_hidden_.rows().from(block.begin), valued = scratch.valued.rows();
    const gemm::Rows<Real> grad_row = grad_row_.rows().from(block.begin), row = saved_.row.rows().from(block.begin);
    finish(block, hidden, to);
    gemm::multiply_transposed<Real>(hidden, out, saved_.valued.rows().from(block.begin), out, count,
                                    {{to.merge, out}, nullptr, add});
    gemm::multiply<Real>(hidden, count, merge_.packed, {valued});
    for (int32_t head = 0; head < layer_.heads; ++head) {
      const int64_t first = head * layer_.head_width();
      gemm::multiply_transposed<Real>(valued.from(0, first), layer_.head_width(), row.from(0, head * width), width,
                                      count, {{to.value + first * width, width}, nullptr, add});
      gemm::multiply<Real>(valued.from(0, first), count, value_.of(head).packed, {grad_row.from(0, head * width)});
    }
    attend(block, scratch.attention, grad_row, to);
  }

  void finish(Range block, gemm::Rows<Real> hidden, const Gradients<Real> &to) {
    const Real kept = layer_.identity ? static_cast<Real>(1.0 / (1.0 - layer_.dropout)) : Real(1);
    for (int64_t i = 0; i < block.size(); ++i) {
      const int64_t root = block.begin + i;
      normalize_backward(gradient_ + root * layer_.out_width, saved_.hidden.rows().at(root),
                         saved_.statistics.data() + 2 * root, layer_.out_width, layer_.norm_weight, kept, hidden.at(i),
                         to.norm_weight, to.norm_bias);
    }
  }

  void attend(Range block, RootAttention<Real> &attention, gemm::Rows<Real> grad_row, const Gradients<Real> &to) {
    for (int64_t i = 0; i < block.size(); ++i) {
      const int64_t root = block.begin + i, scores = root * layer_.heads * layer_.slots;
      const Real *weight = saved_.weight.data() + scores;
      Real *grad_score = grad_score_.data() + scores;
      attention.backward(root, grad_row.at(i), weight, grad_score, grad_query_.rows().at(root));
      if (with_phase_) {
        const Real *query = saved_.query.rows().at(saved_.owner.data()[root]);
        attention.add_phase(root, grad_row.at(i), weight, grad_score, query, to.phase);
      }
    }
  }

  // Own rows: the gradients of their roots are summed first, then go through the products.
  void own(Range block, Scratch &scratch, const AttentionTranspose &transpose, const Gradients<Real> &to, bool add) {
    const int64_t width = layer_.query_width(), depth = layer_.node_width + 1, count = block.size();
    const gemm::Rows<Real> hidden = scratch.hidden.rows(), query = scratch.query.rows(), asked = scratch.asked.rows();
    const gemm::Rows<Real> rows = saved_.own.rows().from(block.begin), grad = grad_own_.rows().from(block.begin);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = saved_.node.data()[block.begin + i];
      const int64_t *roots = transpose.root_order + transpose.root_indptr[node];
      const int64_t number = transpose.root_indptr[node + 1] - transpose.root_indptr[node];
      sum_rows<Real>(grad_hidden_.rows(), roots, number, layer_.out_width, hidden.at(i));
      sum_rows<Real>(grad_query_.rows(), roots, number, width, query.at(i));
    }
    for (int32_t head = 0; head < layer_.heads; ++head) {
      const int64_t first = head * layer_.head_width(), key = layer_.width();
      const gemm::Rows<Real> of_head = query.from(0, head * key);
      gemm::multiply_transposed<Real>(saved_.asked.rows().from(block.begin, first), layer_.head_width(), of_head, key,
                                      count, {{to.key + first * key, key}, nullptr, add});
      gemm::multiply<Real>(of_head, count, key_.of(head).packed, {asked.from(0, first)});
    }
    gemm::multiply<Real>(hidden, count, own_.packed, {grad});
    gemm::multiply<Real>(asked, count, asks_.packed, {grad, nullptr, true});
    gemm::multiply_transposed<Real>(hidden, layer_.out_width, rows, depth, count, {{to.own, depth}, nullptr, add});
    gemm::multiply_transposed<Real>(asked, layer_.out_width, rows, depth, count, {{to.asks, depth}, nullptr, add});
  }

  // Gradients of the unique rows, each over the roots and slots that show it, in their order. Pieces are about equal
  // numbers of them.
  void nodes(const AttentionTranspose &transpose, Real *grad_node) {
    const auto work = [&](int64_t node) { return transpose.slot_indptr[node] + transpose.root_indptr[node] + node; };
    const auto first_of = [&](int64_t piece) {
      const int64_t target = work(layer_.unique) * piece / node_pieces_.count();
      int64_t begin = 0, end = layer_.unique;
      while (begin < end) {
        const int64_t middle = (begin + end) / 2;
        work(middle) < target ? begin = middle + 1 : end = middle;
      }
      return begin;
    };
    node_pieces_.each([&](int64_t piece) {
      const int64_t end = first_of(piece + 1);
      for (int64_t node = first_of(piece); node < end; ++node) {
        node_gradient(node, transpose, grad_node + node * layer_.node_width);
      }
    });
  }

  // In pieces of up to V registers, as few as possible.
  template <int V = 8>
  void node_gradient(int64_t node, const AttentionTranspose &transpose, Real *grad, int64_t column = 0) {
    constexpr int64_t L = simd::kLanes<Real>;
    for (; column + (V - 1) * L < layer_.node_width; column += V * L) {
      const int64_t last = std::min(L, layer_.node_width - column - (V - 1) * L);
      node_columns<V>(node, transpose, column, static_cast<int>(last), grad + column);
    }
    if constexpr (V > 1) {
      node_gradient<V - 1>(node, transpose, grad, column);
    }
  }

  // V registers of columns; what is read behind the last column is not used.
  template <int V>
  void node_columns(int64_t node, const AttentionTranspose &transpose, int64_t column, int last, Real *grad) {
    constexpr int L = simd::kLanes<Real>;
    simd::Vector<Real> sum[V] = {};
    const gemm::Rows<const Real> grad_row = grad_row_.rows(), query_row = saved_.query.rows();
    if (transpose.root_indptr[node] < transpose.root_indptr[node + 1]) {
      const int64_t owner = saved_.owner.data()[transpose.root_order[transpose.root_indptr[node]]];
      for (int v = 0; v < V; ++v) {
        sum[v] = simd::load(grad_own_.rows().at(owner) + column + v * L);
      }
    }
    for (int64_t j = transpose.slot_indptr[node]; j < transpose.slot_indptr[node + 1]; ++j) {
      const int64_t root = transpose.slot_order[j] / layer_.slots, k = transpose.slot_order[j] % layer_.slots;
      const Real *gradient = grad_row.at(root) + column, *query = query_row.at(saved_.owner.data()[root]) + column;
      const int64_t scores = root * layer_.heads * layer_.slots + k;
      for (int32_t head = 0; head < layer_.heads; ++head, gradient += layer_.width(), query += layer_.width()) {
        const auto a = simd::broadcast(saved_.weight.data()[scores + head * layer_.slots]);
        const auto ds = simd::broadcast(grad_score_.data()[scores + head * layer_.slots]);
        for (int v = 0; v < V; ++v) {
          sum[v] = simd::multiply_add(a, simd::load(gradient + v * L), sum[v]);
          sum[v] = simd::multiply_add(ds, simd::load(query + v * L), sum[v]);
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      simd::store_first(grad + v * L, sum[v], v + 1 < V ? L : last);
    }
  }

  const AttentionLayer<Real> &layer_;
  const AttentionSaved<Real> &saved_;
  const Real *gradient_;
  bool with_phase_;
  TimeTable table_;
  AttentionWeights<Real> weights_;
  PackedBuffer<Real> merge_, own_, asks_;
  PackedHeads<Real> key_, value_;
  RowBuffer<Real> grad_hidden_, grad_row_, grad_query_, grad_own_;
  Buffer<Real> grad_score_;
  RowGroups by_root_, by_owner_;
  Pieces node_pieces_{16};
  int64_t owner_size_, root_size_;
  Buffer<Real> owner_sums_, root_sums_, sum_;
};

// The different own rows, in order of first occurrence.
template <typename Real> void find_owners(const AttentionLayer<Real> &layer, AttentionSaved<Real> &saved) {
  saved.owner = Buffer<int32_t>(layer.roots);
  saved.node = Buffer<int64_t>(std::min(layer.roots, layer.unique));
  const Buffer<int32_t> number(layer.unique);
  std::fill_n(number.data(), layer.unique, -1);
  for (int64_t i = 0; i < layer.roots; ++i) {
    int32_t &place = number.data()[layer.root[i]];
    if (place < 0) {
      place = static_cast<int32_t>(saved.owners);
      saved.node.data()[saved.owners++] = layer.root[i];
    }
    saved.owner.data()[i] = place;
  }
}

} // namespace

template <typename Real>
std::unique_ptr<AttentionSaved<Real>> attention_layer_forward(const AttentionLayer<Real> &layer, Real *out,
                                                              int threads) {
  auto saved = std::make_unique<AttentionSaved<Real>>();
  find_owners(layer, *saved);
  saved->own = {saved->owners, layer.node_width + 1};
  saved->asked = {saved->owners, layer.out_width};
  saved->query = {saved->owners, layer.query_width()};
  saved->row = {layer.roots, layer.query_width()};
  saved->valued = {layer.roots, layer.out_width};
  saved->hidden = {layer.roots, layer.out_width};
  saved->weight = Buffer<Real>(layer.roots * layer.heads * layer.slots);
  saved->statistics = Buffer<Real>(2 * layer.roots);
  Forward<Real> forward(layer, *saved, out);
  std::vector<RootAttention<Real>> attention;
  for (int i = 0; i < threads; ++i) {
    attention.emplace_back(layer, forward.table());
  }
  in_parallel(threads, [&](const Team &team) { forward(team, attention[team.rank]); });
  return saved;
}

template <typename Real>
void attention_layer_backward(const AttentionLayer<Real> &layer, const AttentionSaved<Real> &saved,
                              const AttentionTranspose &transpose, const Real *gradient, bool with_phase,
                              Real *grad_node, Real *grad_weights, int threads) {
  if (layer.roots == 0) {
    std::fill_n(grad_node, layer.unique * layer.node_width, Real(0));
    return;
  }
  Backward<Real> backward(layer, saved, gradient, with_phase);
  std::vector<typename Backward<Real>::Scratch> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.emplace_back(layer, backward.table());
  }
  in_parallel(threads,
              [&](const Team &team) { backward(team, scratch[team.rank], transpose, grad_node, grad_weights); });
}

template std::unique_ptr<AttentionSaved<float>> attention_layer_forward(const AttentionLayer<float> &, float *, int);
template std::unique_ptr<AttentionSaved<double>> attention_layer_forward(const AttentionLayer<double> &, double *, int);
template void attention_layer_backward(const AttentionLayer<float> &, const AttentionSaved<float> &,
                                       const AttentionTranspose &, const float *, bool, float *, float *, int);
template void attention_layer_backward(const AttentionLayer<double> &, const AttentionSaved<double> &,
                                       const AttentionTranspose &, const double *, bool, double *, double *, int);

} // namespace hpcgnn
