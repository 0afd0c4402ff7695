// Bindings of the temporal samplers.
#include "hpcgnn/sample.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

TemporalGraph graph_of(const I64 &indptr, const I64 &time, const I64 &event) {
  require(indptr.shape(0) >= 1 && time.shape(0) == event.shape(0), "indptr [nodes + 1], time and event [entries]");
  return {indptr.data(), time.data(), event.data()};
}

// since: none where history has no lower bound.
TemporalRoots roots_of(const I64 &nodes, const I64 &times, const Maybe<const int64_t, 1> &since, int64_t event_limit) {
  require(nodes.shape(0) == times.shape(0) && (!since || since->shape(0) == nodes.shape(0)),
          "nodes, times and since must have the same first dimension");
  return {nodes.data(), times.data(), data_of(since), event_limit};
}

} // namespace

HPCGNN_BINDING(sample) {
  module.def(
      "sample_recent",
      [](I64 indptr, I64 time, I64 event, I64 nodes, I64 times, Maybe<const int64_t, 1> since, int64_t event_limit,
         Array<int64_t, 2> positions, Array<int32_t, 1> count, int64_t execution) {
        require(nodes.shape(0) == positions.shape(0) && nodes.shape(0) == count.shape(0),
                "nodes, positions and count must have the same first dimension");
        sample_recent(graph_of(indptr, time, event), roots_of(nodes, times, since, event_limit), nodes.shape(0),
                      static_cast<int32_t>(positions.shape(1)), positions.data(), count.data(), execution);
      },
      Release());
  module.def(
      "sample_uniform",
      [](I64 indptr, I64 time, I64 event, I64 nodes, I64 times, Maybe<const int64_t, 1> since, I64 identity,
         int64_t event_limit, bool replace, const RandomContext &context, Array<int64_t, 2> positions,
         Array<int32_t, 1> count, int64_t execution) {
        require(nodes.shape(0) == identity.shape(0) && nodes.shape(0) == positions.shape(0) &&
                    nodes.shape(0) == count.shape(0),
                "nodes, identity, positions and count must have the same first dimension");
        sample_uniform(graph_of(indptr, time, event), roots_of(nodes, times, since, event_limit), identity.data(),
                       nodes.shape(0), static_cast<int32_t>(positions.shape(1)), replace, context, positions.data(),
                       count.data(), execution);
      },
      Release());
  module.def(
      "decay_keep",
      [](Array<const uint8_t, 2> remote, Array<const int64_t, 2> age, I64 identity, int64_t half_life,
         const RandomContext &context, Array<int64_t, 2> positions, Array<int32_t, 1> count, int64_t execution) {
        const auto n = positions.shape(0), fanout = positions.shape(1);
        require(remote.shape(0) == n && remote.shape(1) == fanout && age.shape(0) == n && age.shape(1) == fanout,
                "positions, remote and age must have the same shape");
        require(identity.shape(0) == n && count.shape(0) == n && half_life > 0,
                "identity and count as many as positions have rows; half_life > 0");
        decay_keep(Decay{remote.data(), age.data(), identity.data(), half_life}, context, n,
                   static_cast<int32_t>(fanout), positions.data(), count.data(), execution);
      },
      Release());
  module.def(
      "temporal_reply",
      [](I64 other, I64 time, Maybe<const int64_t, 1> feature, Array<const int64_t, 2> positions, I64 times,
         Array<int64_t, 2> reply_other, Array<int64_t, 2> reply_dt, Maybe<int64_t, 2> reply_feature,
         int64_t execution) {
        const auto n = positions.shape(0), fanout = positions.shape(1);
        const auto fits = [&](const Array<int64_t, 2> &out) { return out.shape(0) == n && out.shape(1) == fanout; };
        require(other.shape(0) == time.shape(0) && (!feature || feature->shape(0) == other.shape(0)),
                "other, time and feature must have the same length");
        require(times.shape(0) == n && fits(reply_other) && fits(reply_dt) &&
                    feature.has_value() == reply_feature.has_value() && (!reply_feature || fits(*reply_feature)),
                "times [N]; positions and the replies [N, K]");
        temporal_reply({other.data(), time.data(), data_of(feature)}, positions.data(), times.data(), n,
                       static_cast<int32_t>(fanout), {reply_other.data(), reply_dt.data(), data_of(reply_feature)},
                       execution);
      },
      Release());
}

} // namespace hpcgnn
