// A whole batch of static neighbor sampling on the CPU. The blocks of a hop's frontier are dealt to the threads; the
// sources of a sampled block wait in the layer until all blocks before it have been relabeled, by whichever thread
// comes along, so that the order of first occurrence does not depend on threads.
#include "hpcgnn/neighbor_batch.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>

#include "hpcgnn/base/team.h"

namespace hpcgnn {
namespace {

constexpr int64_t kAhead = 48;   // rows by which row bounds are fetched ahead
constexpr int64_t kFetched = 32; // entries of a row whose sources are fetched before it is known which are drawn
constexpr int64_t kLine = 8;     // entries of a cache line

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
    sample_rows(sampler_, relabeler_.unique().get() + rows.begin, rows.size(), offsets, positions, keys);
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

} // namespace

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
