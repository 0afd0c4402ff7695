// Element functions of the temporal samplers: one root, its history in a T-CSR (entries of a node are sorted by event
// row id, hence by time), the positions of the chosen entries in increasing order; and of what thins them out.
#pragma once

#include "hpcgnn/base/execution.h"
#include "hpcgnn/random.h"

namespace hpcgnn {

struct TemporalGraph {
  const int64_t *indptr; // [nodes + 1]
  const int64_t *time;   // [entries]
  const int64_t *event;  // [entries]
};

// First position in [begin, end) whose value is not below the limit.
HPCGNN_HD int64_t first_not_below(const int64_t *values, int64_t begin, int64_t end, int64_t limit) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (values[middle] < limit) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// What the roots of one call may see: entries of their node, not before `since`, strictly before their time, and of
// events below the limit.
struct TemporalRoots {
  const int64_t *nodes, *times; // [n]
  const int64_t *since;         // [n], null where history has no lower bound
  int64_t event_limit;
};

struct Window {
  int64_t begin, end;
};

HPCGNN_HD Window visible_window(const TemporalGraph &graph, const TemporalRoots &roots, int64_t i) {
  const int64_t begin = graph.indptr[roots.nodes[i]];
  const int64_t before = first_not_below(graph.time, begin, graph.indptr[roots.nodes[i] + 1], roots.times[i]);
  const bool limited = before > begin && graph.event[before - 1] >= roots.event_limit;
  const int64_t end = limited ? first_not_below(graph.event, begin, before, roots.event_limit) : before;
  return {roots.since == nullptr ? begin : first_not_below(graph.time, begin, end, roots.since[i]), end};
}

// The newest `fanout` entries; returns how many there are. out[fanout], padded with -1.
HPCGNN_HD int32_t sample_recent_one(const TemporalGraph &graph, const TemporalRoots &roots, int64_t i, int32_t fanout,
                                    int64_t *out) {
  const Window window = visible_window(graph, roots, i);
  const int64_t degree = window.end - window.begin;
  const int32_t count = static_cast<int32_t>(degree < fanout ? degree : fanout);
  for (int32_t slot = 0; slot < fanout; ++slot) {
    out[slot] = slot < count ? window.end - count + slot : -1;
  }
  return count;
}

HPCGNN_HD void insert_sorted(int64_t *values, int32_t size, int64_t value) {
  while (size > 0 && values[size - 1] > value) {
    values[size] = values[size - 1];
    --size;
  }
  values[size] = value;
}

HPCGNN_HD bool contains_sorted(const int64_t *values, int32_t size, int64_t value) {
  for (int32_t i = 0; i < size; ++i) {
    if (values[i] == value) {
      return true;
    }
  }
  return false;
}

// The random words of one row's slots; a Philox block serves four neighboring slots.
class RowDraws {
public:
  HPCGNN_HD RowDraws(const RandomContext &context, uint64_t identity) : context_(context), identity_(identity) {}

  HPCGNN_HD uint32_t word(uint32_t slot) {
    if (slot >> 2 != block_) {
      block_ = slot >> 2;
      words_ = philox(random_counter(context_, identity_, block_), random_key(context_));
    }
    return words_.word[slot & 3];
  }

  // Equals random_below, which is called where the first word may have to be rejected.
  HPCGNN_HD uint32_t below(uint32_t slot, uint32_t bound) {
    const uint64_t product = static_cast<uint64_t>(word(slot)) * bound;
    const bool certain = static_cast<uint32_t>(product) >= bound;
    return certain ? static_cast<uint32_t>(product >> 32) : random_below(context_, identity_, slot, bound);
  }

private:
  const RandomContext &context_;
  uint64_t identity_;
  uint32_t block_ = UINT32_MAX;
  RandomBlock words_ = {};
};

// `fanout` entries drawn uniformly, with replacement, or without (Floyd's algorithm: Bentley and Floyd, CACM 1987); all
// of them when there are no more than fanout and replacement is off. Slot s of the counter is the s-th draw.
HPCGNN_HD int32_t sample_uniform_one(const TemporalGraph &graph, const TemporalRoots &roots, int64_t i, int32_t fanout,
                                     bool replace, const RandomContext &context, uint64_t identity, int64_t *out) {
  const Window window = visible_window(graph, roots, i);
  const int64_t begin = window.begin, degree = window.end - begin;
  RowDraws draws(context, identity);
  int32_t count = 0;
  if (degree > 0 && replace) {
    for (; count < fanout; ++count) {
      insert_sorted(out, count, begin + draws.below(count, static_cast<uint32_t>(degree)));
    }
  } else if (degree <= fanout) {
    for (; count < degree; ++count) {
      out[count] = begin + count;
    }
  } else {
    for (; count < fanout; ++count) {
      const int64_t last = degree - fanout + count;
      int64_t choice = begin + draws.below(count, static_cast<uint32_t>(last + 1));
      if (contains_sorted(out, count, choice)) {
        choice = begin + last;
      }
      insert_sorted(out, count, choice);
    }
  }
  for (int32_t slot = count; slot < fanout; ++slot) {
    out[slot] = -1;
  }
  return count;
}

// Columns of a history, and of a reply to it; feature: null where there are none.
struct HistoryColumns {
  const int64_t *other, *time, *feature; // [entries]
};

struct ReplyColumns {
  int64_t *other, *dt, *feature; // [n, fanout]
};

// What slot `at` says of the entry at a position: other endpoint, time difference, feature row; -1, 0, -1 for padding.
HPCGNN_HD void reply_slot(const HistoryColumns &history, const ReplyColumns &reply, int64_t position, int64_t time,
                          int64_t at) {
  const bool valid = position >= 0;
  reply.other[at] = valid ? history.other[position] : -1;
  reply.dt[at] = valid ? time - history.time[position] : 0;
  if (history.feature != nullptr) {
    reply.feature[at] = valid ? history.feature[position] : -1;
  }
}

// Thinning of neighbors in other parts by age (boundary decay, StarryGL). Rows as the samplers leave them.
struct Decay {
  const uint8_t *remote;   // [n, fanout], read for valid slots only, like age
  const int64_t *age;      // [n, fanout]
  const int64_t *identity; // [n]
  int64_t half_life;       // above 0
};

// A slot of this age is kept when its random word is below this: 2^32 halved once a half-life, 32 times at most.
HPCGNN_HD uint64_t decay_threshold(int64_t age, int64_t half_life) {
  const int64_t halvings = age > 0 ? age / half_life : 0;
  return (1ull << 32) >> (halvings < 32 ? halvings : 32);
}

HPCGNN_HD bool decay_keeps(const Decay &decay, RowDraws &draws, int32_t slot, int64_t at) {
  const uint64_t threshold = decay.remote[at] ? decay_threshold(decay.age[at], decay.half_life) : 1ull << 32;
  return threshold >> 32 || draws.word(slot) < threshold;
}

// Row i of positions [n, fanout] keeps its survivors, in order; returns how many of its `count` there are.
HPCGNN_HD int32_t decay_keep_one(const Decay &decay, const RandomContext &context, int64_t i, int32_t fanout,
                                 int32_t count, int64_t *positions) {
  RowDraws draws(context, static_cast<uint64_t>(decay.identity[i]));
  int32_t kept = 0;
  for (int32_t slot = 0; slot < count; ++slot) {
    const int64_t at = i * fanout + slot;
    if (decay_keeps(decay, draws, slot, at)) {
      positions[i * fanout + kept++] = positions[at];
    }
  }
  for (int32_t slot = kept; slot < count; ++slot) {
    positions[i * fanout + slot] = -1;
  }
  return kept;
}

// Positions [n, fanout] in the T-CSR (-1 pads), count [n].
void sample_recent(const TemporalGraph &graph, const TemporalRoots &roots, int64_t n, int32_t fanout,
                   int64_t *positions, int32_t *count, Execution execution);
void sample_uniform(const TemporalGraph &graph, const TemporalRoots &roots, const int64_t *identity, int64_t n,
                    int32_t fanout, bool replace, const RandomContext &context, int64_t *positions, int32_t *count,
                    Execution execution);
// Drops decayed neighbors of positions [n, fanout] in place, lowers count [n].
void decay_keep(const Decay &decay, const RandomContext &context, int64_t n, int32_t fanout, int64_t *positions,
                int32_t *count, Execution execution);
// Gathers the reply for positions [n, fanout] of roots with these times [n].
void temporal_reply(const HistoryColumns &history, const int64_t *positions, const int64_t *times, int64_t n,
                    int32_t fanout, const ReplyColumns &reply, Execution execution);

} // namespace hpcgnn
