// A whole batch, or a hop of many relations, of static neighbor sampling on the CPU. The blocks of a hop's frontier are
// dealt to the threads; the sources of a sampled block wait in the layer until all blocks before it have been
// relabeled, by whichever thread comes along, so that the order of first occurrence does not depend on threads.
#include "hpcgnn/neighbor_batch.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>

#include "hpcgnn/base/team.h"

namespace hpcgnn {
namespace {

constexpr int64_t kAhead = 48;      // rows by which row bounds are fetched ahead
constexpr int64_t kFetched = 32;    // entries of a row whose sources are fetched before it is known which are drawn
constexpr int64_t kLine = 8;        // entries of a cache line
constexpr int64_t kPairsAhead = 16; // nodes by which their pairs are fetched ahead

// One thread's scratch: positions and LABOR's keys of a block.
struct Scratch {
  std::vector<int64_t> positions;
  std::vector<uint64_t> keys;
};

template <typename T> T *grown(std::vector<T> &memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) {
    memory.resize(size);
  }
  return memory.data();
}

// One hop: opened, counted and closed between barriers of the team. Every block has room in the layer's arrays for as
// much as it may draw; relabeling moves what it drew up to the blocks before it.
class Hop {
public:
  Hop(const LayersJob &job, const NeighborSampler &sampler, Relabeler &relabeler, SampledLayer &layer)
      : job_(job), sampler_(sampler), relabeler_(relabeler), layer_(layer), bounded_(sampler.fanout <= kMostRoom),
        num_blocks_((relabeler.size() + kSampleRows - 1) / kSampleRows), counting_(bounded_ ? 0 : num_blocks_),
        sampling_(num_blocks_), room_(num_blocks_ + 1), sampled_(num_blocks_) {
    layer.nodes = relabeler.size();
    layer.offsets.reset(new int64_t[layer.nodes + 1]);
    layer.offsets[0] = 0;
  }

  // Each block's number of entries, where the fanout does not bound it.
  void count() {
    counting_.each([&](int64_t block) { room_[block + 1] = count_rows(rows_of(block)); });
  }

  // One thread, when all have counted.
  void allocate() {
    for (int64_t block = 0; block < num_blocks_; ++block) {
      room_[block + 1] = room_[block] + (bounded_ ? rows_of(block).size() * sampler_.fanout : room_[block + 1]);
    }
    const int64_t room = room_[num_blocks_];
    layer_.source.reset(new int32_t[room]);
    if (job_.with_positions) {
      layer_.positions.reset(new int64_t[room]);
    }
    relabeler_.reserve(layer_.nodes + room);
  }

  // Samples blocks, and relabels what is ready unless another thread does.
  void sample(Scratch &scratch) {
    sampling_.each([&](int64_t block) {
      sample_block(block, scratch);
      sampled_[block].store(true, std::memory_order_release);
      if (!relabeling_.exchange(true, std::memory_order_acquire)) {
        relabel_ready();
        relabeling_.store(false, std::memory_order_release);
      }
    });
  }

  // Relabels the blocks that are left over; one thread, when all have sampled.
  void finish() { relabel_ready(); }

  // The first source that is no node, else -1.
  int64_t wrong() const { return wrong_; }

private:
  static constexpr int32_t kMostRoom = 64; // fanout up to which rows get room for as many entries unseen

  Range rows_of(int64_t block) const {
    return {block * kSampleRows, std::min((block + 1) * kSampleRows, layer_.nodes)};
  }

  // The rows' number of entries; each row's offset behind its entries, as if the first row began at 0.
  int64_t count_rows(const Range &rows) {
    const int64_t *nodes = relabeler_.unique().get();
    int64_t sum = 0;
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      __builtin_prefetch(sampler_.indptr + nodes[std::min(i + kAhead, layer_.nodes - 1)]);
      const NeighborRow row = neighbor_row(sampler_, nodes[i]);
      fetch(nodes[i], row);
      sum += neighbor_count(sampler_, row);
      layer_.offsets[i + 1] = sum;
    }
    return sum;
  }

  // Starts to load what sampling the row will read.
  void fetch(int64_t node, const NeighborRow &row) const {
    if (row.degree > sampler_.fanout) {
      __builtin_prefetch(sampler_.identity + node);
    }
    for (int64_t at = row.begin; at < row.begin + std::min(row.degree, kFetched); at += kLine) {
      __builtin_prefetch(job_.src + at);
    }
  }

  void sample_block(int64_t block, Scratch &scratch) {
    const Range rows = rows_of(block);
    const int64_t edges = count_rows(rows), begin = room_[block];
    int64_t offsets[kSampleRows + 1] = {0};
    std::copy(layer_.offsets.get() + rows.begin + 1, layer_.offsets.get() + rows.end + 1, offsets + 1);
    int64_t *positions = job_.with_positions ? layer_.positions.get() + begin : grown(scratch.positions, edges);
    uint64_t *keys = sampler_.mode == NeighborMode::kLabor ? grown(scratch.keys, edges) : nullptr;
    sample_rows(sampler_, {}, {}, relabeler_.unique().get() + rows.begin, rows.size(), offsets, positions, keys);
    gather_sources(positions, edges, layer_.source.get() + begin);
  }

  void gather_sources(const int64_t *positions, int64_t edges, int32_t *source) const {
    for (int64_t i = 0; i < edges; ++i) {
      source[i] = static_cast<int32_t>(job_.src[positions[i]]);
      relabeler_.fetch(source[i]);
    }
  }

  void relabel_ready() {
    for (; relabeled_ < num_blocks_ && sampled_[relabeled_].load(std::memory_order_acquire); ++relabeled_) {
      relabel_block(relabeled_);
    }
  }

  void relabel_block(int64_t block) {
    const Range rows = rows_of(block);
    const int64_t edges = layer_.offsets[rows.end], from = room_[block], to = layer_.edges;
    int32_t *source = layer_.source.get();
    wrong_ = std::max(wrong_, relabeler_.add(source + from, edges, source + to));
    if (job_.with_positions && from != to) {
      std::copy(layer_.positions.get() + from, layer_.positions.get() + from + edges, layer_.positions.get() + to);
    }
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      layer_.offsets[i + 1] += to;
    }
    layer_.edges += edges;
  }

  const LayersJob &job_;
  const NeighborSampler &sampler_;
  Relabeler &relabeler_;
  SampledLayer &layer_;
  bool bounded_;
  int64_t num_blocks_;
  Pieces counting_, sampling_;
  std::vector<int64_t> room_; // [blocks + 1] where each block's room begins
  std::vector<std::atomic<bool>> sampled_;
  std::atomic<bool> relabeling_{false};
  int64_t relabeled_ = 0, wrong_ = -1;
};

void require_node(bool is_node, const char *what, int64_t id, int64_t rows) {
  if (!is_node) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(id) + " is not in [0, " +
                                std::to_string(rows) + ")");
  }
}

void add_seeds(const LayersJob &job, Relabeler &relabeler) {
  const int64_t rows = relabeler.num_nodes();
  for (int64_t i = 0; i < job.num_seeds; ++i) {
    require_node(0 <= job.seeds[i] && job.seeds[i] < rows, "seed", job.seeds[i], rows);
  }
  std::vector<int32_t> positions(job.num_seeds);
  relabeler.begin();
  relabeler.add(job.seeds, job.num_seeds, positions.data());
}

// The lists of a hop: counted, allocated and sampled between barriers of the team.
class ListsHop {
public:
  ListsHop(const ListsJob &job, FoundPairs &pairs, SampledLists &out)
      : job_(job), pairs_(pairs), out_(out), counting_((job.n + kSampleRows - 1) / kSampleRows), wrong_(job.n) {
    out.offsets.reset(new int64_t[job.n + 1]);
    out.offsets[0] = 0;
  }

  // The number of entries of each row, at the place of the offset behind them.
  void count() {
    counting_.each([&](int64_t block) {
      const Range rows = rows_of(block, job_.n);
      for (int64_t i = rows.begin; i < rows.end && is_known(i); ++i) {
        __builtin_prefetch(job_.sampler.indptr + job_.lists[std::min(i + kAhead, job_.n - 1)]);
        out_.offsets[i + 1] = count_row(job_.sampler, job_.relations, job_.lost, job_.lists, i);
      }
    });
  }

  // One thread, when all have counted and no row is wrong.
  void allocate() {
    for (int64_t i = 0; i < job_.n; ++i) {
      const int64_t entries = out_.offsets[i + 1];
      if (entries > 0 || pairs_.size == 0) {
        keep(i);
        out_.offsets[out_.n + 1] = out_.offsets[out_.n] + entries;
        ++out_.n;
      }
    }
    out_.edges = out_.offsets[out_.n];
    if (job_.with_positions) {
      out_.positions.reset(new int64_t[out_.edges]);
    }
    if (job_.source != nullptr) {
      out_.source.reset(new int64_t[out_.edges]);
    }
    sampling_.emplace((out_.n + kSampleRows - 1) / kSampleRows);
  }

  void sample(Scratch &scratch) {
    sampling_->each([&](int64_t block) { sample_block(block, scratch); });
  }

  // The first row whose list or relation does not exist, else the number of rows.
  int64_t wrong() const { return wrong_; }

private:
  static Range rows_of(int64_t block, int64_t n) {
    return {block * kSampleRows, std::min((block + 1) * kSampleRows, n)};
  }

  bool is_known(int64_t i) {
    const auto is_below = [](int64_t value, int64_t bound) { return 0 <= value && value < bound; };
    const int32_t *relation = job_.relations.of_row;
    if (is_below(job_.lists[i], job_.num_lists) &&
        (relation == nullptr || is_below(relation[i], job_.relations.count))) {
      return true;
    }
    for (int64_t seen = wrong_; i < seen && !wrong_.compare_exchange_weak(seen, i);) {
    }
    return false;
  }

  // Moves the pair behind those that were kept before.
  void keep(int64_t i) {
    if (out_.n < i) {
      pairs_.list[out_.n] = pairs_.list[i];
      pairs_.place[out_.n] = pairs_.place[i];
      pairs_.relation[out_.n] = pairs_.relation[i];
    }
  }

  // Starts to load what sampling the rows will read.
  void fetch(const Range &rows) const {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      __builtin_prefetch(job_.sampler.indptr + job_.lists[i]);
    }
    for (int64_t i = rows.begin; job_.source != nullptr && i < rows.end; ++i) {
      const NeighborRow row = neighbor_row(job_.sampler, job_.lists[i]);
      for (int64_t at = row.begin; at < row.begin + std::min(row.degree, kFetched); at += kLine) {
        __builtin_prefetch(job_.source + at);
      }
    }
  }

  void sample_block(int64_t block, Scratch &scratch) {
    const Range rows = rows_of(block, out_.n);
    const int64_t *offsets = out_.offsets.get() + rows.begin;
    const int64_t begin = offsets[0], edges = offsets[rows.size()] - begin;
    int64_t *positions = job_.with_positions ? out_.positions.get() + begin : grown(scratch.positions, edges);
    uint64_t *keys = job_.sampler.mode == NeighborMode::kLabor ? grown(scratch.keys, edges) : nullptr;
    RowRelations relations = job_.relations;
    relations.of_row += relations.of_row == nullptr ? 0 : rows.begin;
    fetch(rows);
    sample_rows(job_.sampler, relations, job_.lost, job_.lists + rows.begin, rows.size(), offsets, positions, keys);
    for (int64_t i = 0; job_.source != nullptr && i < edges; ++i) {
      out_.source[begin + i] = job_.source[positions[i]];
    }
  }

  const ListsJob &job_;
  FoundPairs &pairs_; // whose lists are the job's, or none
  SampledLists &out_;
  Pieces counting_;
  std::optional<Pieces> sampling_;
  std::atomic<int64_t> wrong_;
};

SampledLists sample_pairs_or_lists(const ListsJob &job, FoundPairs &pairs, int threads) {
  SampledLists out;
  ListsHop hop(job, pairs, out);
  in_parallel(threads, [&](const Team &team) {
    thread_local Scratch scratch;
    hop.count();
    team.barrier();
    if (team.rank == 0 && hop.wrong() == job.n) {
      hop.allocate();
    }
    team.barrier();
    if (hop.wrong() == job.n) {
      hop.sample(scratch);
    }
  });
  if (const int64_t wrong = hop.wrong(); wrong < job.n) {
    require_node(0 <= job.lists[wrong] && job.lists[wrong] < job.num_lists, "list", job.lists[wrong], job.num_lists);
    require_node(false, "relation", job.relations.of_row[wrong], job.relations.count);
  }
  return out;
}

// The pairs of a group's nodes as they lie in the lists, node by node; of the vectors the first `size` entries.
struct UnsortedPairs {
  std::vector<int64_t> list, place;
  std::vector<int32_t> relation;
  int64_t size = 0;
};

// Copies the pairs of the nodes from begin to end, and counts those of each relation. Each pair is read once: it is far
// from those of other nodes.
void copy_pairs(const NodePairs &pairs, const int64_t *nodes, int64_t begin, int64_t end,
                const std::vector<int32_t> &fanouts, std::vector<int64_t> &counts, UnsortedPairs &out) {
  int64_t most = 0, size = 0;
  for (int64_t i = begin; i < end; ++i) {
    most += pairs.first[nodes[i] + 1] - pairs.first[nodes[i]];
  }
  int64_t *list = grown(out.list, most), *place = grown(out.place, most);
  int32_t *relations = grown(out.relation, most);
  for (int64_t i = begin; i < end; ++i) {
    __builtin_prefetch(pairs.first + nodes[std::min(i + 2 * kPairsAhead, end - 1)]);
    const int64_t next = pairs.first[nodes[std::min(i + kPairsAhead, end - 1)]];
    for (int64_t at = next; at < next + 2 * kLine; at += kLine) { // a prefetch may lead behind the end
      __builtin_prefetch(pairs.relation + at);
      __builtin_prefetch(pairs.list + at);
    }
    for (int64_t pair = pairs.first[nodes[i]]; pair < pairs.first[nodes[i] + 1]; ++pair) {
      const int64_t relation = pairs.relation[pair], count = static_cast<int64_t>(fanouts.size());
      if (__builtin_expect(relation < 0 || relation >= count, 0)) {
        require_node(false, "relation", relation, count);
      }
      const int64_t is_drawn = fanouts[relation] != 0; // counted, not asked: no branch to mispredict
      list[size] = pairs.list[pair];
      place[size] = i;
      relations[size] = static_cast<int32_t>(relation);
      counts[relation] += is_drawn;
      size += is_drawn;
    }
  }
  out.size = size;
}

// Puts pairs, in order of relation, behind those that were found before. counts: of the pairs of each relation.
void sort_pairs(const UnsortedPairs &pairs, std::vector<int64_t> &counts, FoundPairs &found) {
  for (int64_t &count : counts) {
    const int64_t begin = found.size;
    found.size += count;
    count = begin;
  }
  for (int64_t i = 0; i < pairs.size; ++i) {
    const int64_t to = counts[pairs.relation[i]]++;
    found.list[to] = pairs.list[i];
    found.place[to] = pairs.place[i];
    found.relation[to] = pairs.relation[i];
  }
}

} // namespace

FoundPairs find_pairs(const NodePairs &pairs, const GroupedNodes &nodes, const std::vector<int32_t> &fanouts) {
  FoundPairs found;
  int64_t most = 0;
  for (int64_t i = 0; i < nodes.bounds[nodes.groups]; ++i) {
    const int64_t node = nodes.node[i];
    require_node(0 <= node && node < pairs.nodes, "node", node, pairs.nodes);
    most += pairs.first[node + 1] - pairs.first[node];
  }
  found.list.reset(new int64_t[most]);
  found.place.reset(new int64_t[most]);
  found.relation.reset(new int32_t[most]);
  thread_local UnsortedPairs unsorted;
  for (int64_t group = 0; group < nodes.groups; ++group) {
    if (nodes.bounds[group] < nodes.bounds[group + 1]) {
      std::vector<int64_t> counts(fanouts.size());
      copy_pairs(pairs, nodes.node, nodes.bounds[group], nodes.bounds[group + 1], fanouts, counts, unsorted);
      sort_pairs(unsorted, counts, found);
    }
  }
  return found;
}

SampledLists sample_lists(const ListsJob &job, int threads) {
  FoundPairs none;
  return sample_pairs_or_lists(job, none, threads);
}

SampledLists sample_pairs(ListsJob job, FoundPairs &pairs, int threads) {
  job.lists = pairs.list.get();
  job.relations.of_row = pairs.relation.get();
  job.n = pairs.size;
  SampledLists out = sample_pairs_or_lists(job, pairs, threads);
  pairs.size = out.n;
  return out;
}

std::vector<SampledLayer> sample_layers(const LayersJob &job, Relabeler &relabeler, int threads) {
  add_seeds(job, relabeler);
  std::vector<SampledLayer> layers(job.fanouts.size());
  NeighborSampler sampler = job.sampler;
  std::optional<Hop> hop;
  int64_t wrong = -1;
  in_parallel(threads, [&](const Team &team) {
    thread_local Scratch scratch;
    for (size_t layer = 0; layer < layers.size() && wrong == -1; ++layer) {
      if (team.rank == 0) {
        sampler.fanout = job.fanouts[layer];
        sampler.mode = sampler.fanout == kAllNeighbors ? NeighborMode::kUniform : job.sampler.mode;
        sampler.context.hop = job.sampler.context.hop + static_cast<uint32_t>(layer);
        hop.emplace(job, sampler, relabeler, layers[layer]);
      }
      team.barrier();
      hop->count();
      team.barrier();
      if (team.rank == 0) {
        hop->allocate();
      }
      team.barrier();
      hop->sample(scratch);
      team.barrier();
      if (team.rank == 0) {
        hop->finish();
        wrong = hop->wrong();
      }
      team.barrier();
    }
  });
  require_node(wrong == -1, "source", wrong, relabeler.num_nodes());
  return layers;
}

} // namespace hpcgnn
