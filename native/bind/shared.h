// Bindings of the operations that both backends have under one signature: `Backend` names the namespace, the device of
// the arrays and how a call is executed (threads on the CPU, a stream on CUDA, both an integer).
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/bindings.h"
#include "hpcgnn/neighbors.h"

namespace hpcgnn {

template <typename Device>
TemporalGraph graph_of(const Array<const int64_t, 1, Device> &indptr, const Array<const int64_t, 1, Device> &time,
                       const Array<const int64_t, 1, Device> &event) {
  require(indptr.shape(0) >= 1 && time.shape(0) == event.shape(0), "indptr [nodes + 1], time and event [entries]");
  return {indptr.data(), time.data(), event.data()};
}

template <typename Device> using Since = std::optional<Array<const int64_t, 1, Device>>;

// since: none where history has no lower bound.
template <typename Device>
TemporalRoots roots_of(const Array<const int64_t, 1, Device> &nodes, const Array<const int64_t, 1, Device> &times,
                       const Since<Device> &since, int64_t event_limit) {
  require(nodes.shape(0) == times.shape(0) && (!since || since->shape(0) == nodes.shape(0)),
          "nodes, times and since must have the same first dimension");
  return {nodes.data(), times.data(), since ? since->data() : nullptr, event_limit};
}

template <typename Backend> void bind_samplers(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  module.def(
      "sample_recent",
      [](I64 indptr, I64 time, I64 event, I64 nodes, I64 times, Since<D> since, int64_t event_limit,
         Array<int64_t, 2, D> positions, Array<int32_t, 1, D> count, int64_t execution) {
        require(nodes.shape(0) == positions.shape(0) && nodes.shape(0) == count.shape(0),
                "nodes, positions and count must have the same first dimension");
        Backend::sample_recent(graph_of<D>(indptr, time, event), roots_of<D>(nodes, times, since, event_limit),
                               nodes.shape(0), static_cast<int32_t>(positions.shape(1)), positions.data(), count.data(),
                               execution);
      },
      Release());
  module.def(
      "sample_uniform",
      [](I64 indptr, I64 time, I64 event, I64 nodes, I64 times, Since<D> since, I64 identity, int64_t event_limit,
         bool replace, const RandomContext &context, Array<int64_t, 2, D> positions, Array<int32_t, 1, D> count,
         int64_t execution) {
        require(nodes.shape(0) == identity.shape(0) && nodes.shape(0) == positions.shape(0) &&
                    nodes.shape(0) == count.shape(0),
                "nodes, identity, positions and count must have the same first dimension");
        Backend::sample_uniform(graph_of<D>(indptr, time, event), roots_of<D>(nodes, times, since, event_limit),
                                identity.data(), nodes.shape(0), static_cast<int32_t>(positions.shape(1)), replace,
                                context, positions.data(), count.data(), execution);
      },
      Release());
}

template <typename Backend> void bind_decay(nb::module_ &module) {
  using D = typename Backend::Device;
  module.def(
      "decay_keep",
      [](Array<const uint8_t, 2, D> remote, Array<const int64_t, 2, D> age, Array<const int64_t, 1, D> identity,
         int64_t half_life, const RandomContext &context, Array<int64_t, 2, D> positions, Array<int32_t, 1, D> count,
         int64_t execution) {
        const auto n = positions.shape(0), fanout = positions.shape(1);
        require(remote.shape(0) == n && remote.shape(1) == fanout && age.shape(0) == n && age.shape(1) == fanout,
                "positions, remote and age must have the same shape");
        require(identity.shape(0) == n && count.shape(0) == n && half_life > 0,
                "identity and count as many as positions have rows; half_life > 0");
        Backend::decay_keep(Decay{remote.data(), age.data(), identity.data(), half_life}, context, n,
                            static_cast<int32_t>(fanout), positions.data(), count.data(), execution);
      },
      Release());
}

template <typename Backend> void bind_reply(nb::module_ &module) {
  using D = typename Backend::Device;
  using Column = Array<const int64_t, 1, D>;
  using Out = Array<int64_t, 2, D>;
  module.def(
      "temporal_reply",
      [](Column other, Column time, std::optional<Column> feature, Array<const int64_t, 2, D> positions, Column times,
         Out reply_other, Out reply_dt, std::optional<Out> reply_feature, int64_t execution) {
        const auto n = positions.shape(0), fanout = positions.shape(1);
        const auto fits = [&](const Out &out) { return out.shape(0) == n && out.shape(1) == fanout; };
        require(other.shape(0) == time.shape(0) && (!feature || feature->shape(0) == other.shape(0)),
                "other, time and feature must have the same length");
        require(times.shape(0) == n && fits(reply_other) && fits(reply_dt) &&
                    feature.has_value() == reply_feature.has_value() && (!reply_feature || fits(*reply_feature)),
                "times [N]; positions and the replies [N, K]");
        Backend::temporal_reply({other.data(), time.data(), feature ? feature->data() : nullptr}, positions.data(),
                                times.data(), n, static_cast<int32_t>(fanout),
                                {reply_other.data(), reply_dt.data(), reply_feature ? reply_feature->data() : nullptr},
                                execution);
      },
      Release());
}

// A sampler without random numbers counts only.
template <typename Device>
NeighborSampler sampler_of(const Array<const int64_t, 1, Device> &indptr,
                           const std::optional<Array<const uint32_t, 1, Device>> &weight, int32_t fanout,
                           int32_t mode) {
  require(indptr.shape(0) >= 1 && fanout > 0, "indptr [rows + 1], fanout > 0");
  return {indptr.data(), nullptr, weight ? weight->data() : nullptr, nullptr, nullptr, fanout, NeighborMode(mode), {}};
}

template <typename Backend> void bind_neighbors(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  using Weight = std::optional<Array<const uint32_t, 1, D>>;
  module.def(
      "count_neighbors",
      [](I64 indptr, Weight weight, int32_t fanout, int32_t mode, I64 nodes, Array<int64_t, 1, D> count,
         int64_t execution) {
        require(nodes.shape(0) == count.shape(0), "nodes and count must have the same length");
        Backend::count_neighbors(sampler_of<D>(indptr, weight, fanout, mode), indptr.shape(0) - 1, nodes.data(),
                                 nodes.shape(0), count.data(), execution);
      },
      Release());
  module.def(
      "sample_neighbors",
      [](I64 indptr, Weight weight, int32_t fanout, int32_t mode, I64 nodes, I64 identity,
         std::optional<I64> source_identity, const RandomContext &context, I64 offsets, Array<int64_t, 1, D> positions,
         std::optional<Array<int64_t, 1, D>> keys, int64_t execution) {
        NeighborSampler sampler = sampler_of<D>(indptr, weight, fanout, mode);
        require(identity.shape(0) + 1 == indptr.shape(0) && offsets.shape(0) == nodes.shape(0) + 1,
                "identity [rows], offsets [nodes + 1]");
        require(sampler.mode != NeighborMode::kLabor ||
                    (source_identity && keys && keys->shape(0) == positions.shape(0)),
                "LABOR needs source_identity, and keys as long as positions");
        sampler.identity = identity.data();
        sampler.source_identity = source_identity ? source_identity->data() : nullptr;
        sampler.context = context;
        Backend::sample_neighbors(sampler, nodes.data(), nodes.shape(0), offsets.data(), positions.data(),
                                  keys ? reinterpret_cast<uint64_t *>(keys->data()) : nullptr, execution);
      },
      Release());
}

template <typename Backend, typename Real> void bind_dropout(nb::module_ &module) {
  using D = typename Backend::Device;
  module.def(
      "dropout_mask",
      [](const RandomContext &context, Array<const int64_t, 1, D> identity, double p, Array<Real, 2, D> mask,
         int64_t execution) {
        require(identity.shape(0) == mask.shape(0), "identity and mask must have the same first dimension");
        Backend::template dropout_mask<Real>(context, identity.data(), mask.shape(0),
                                             static_cast<int32_t>(mask.shape(1)), p, mask.data(), execution);
      },
      Release());
}

template <typename Backend> void bind_random(nb::module_ &module) {
  using D = typename Backend::Device;
  module.def(
      "random_integers",
      [](const RandomContext &context, Array<const int64_t, 1, D> identity, uint32_t bound, Array<int64_t, 2, D> out,
         int64_t execution) {
        require(identity.shape(0) == out.shape(0) && bound > 0,
                "identity and out must have the same first dimension; bound > 0");
        Backend::random_integers(context, identity.data(), out.shape(0), static_cast<int32_t>(out.shape(1)), bound,
                                 out.data(), execution);
      },
      Release());
  bind_dropout<Backend, float>(module);
  bind_dropout<Backend, double>(module);
}

template <typename Backend, typename Real> void bind_segment_sum(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  module.def(
      "segment_sum_rows",
      [](Array<const Real, 2, D> rows, I64 indptr, I64 order, Array<Real, 2, D> out, int64_t execution) {
        require(indptr.shape(0) == out.shape(0) + 1 && rows.shape(1) == out.shape(1),
                "indptr [segments + 1], equal widths");
        Backend::template segment_sum_rows<Real>(rows.data(), indptr.data(), order.data(), out.shape(0), out.shape(1),
                                                 out.data(), execution);
      },
      Release());
}

template <typename Backend> void bind_rows(nb::module_ &module) {
  using D = typename Backend::Device;
  using I64 = Array<const int64_t, 1, D>;
  module.def(
      "gather_rows",
      [](Array<const uint8_t, 2, D> table, I64 index, Array<uint8_t, 2, D> out, int64_t execution) {
        require(index.shape(0) == out.shape(0) && table.shape(1) == out.shape(1),
                "index and out rows, equal row widths");
        Backend::gather_rows(table.data(), index.data(), index.shape(0), out.shape(1), out.data(), execution);
      },
      Release());
  module.def(
      "scatter_rows",
      [](Array<uint8_t, 2, D> table, I64 index, Array<const uint8_t, 2, D> rows, int64_t execution) {
        require(index.shape(0) == rows.shape(0) && table.shape(1) == rows.shape(1), "index and rows, equal row widths");
        Backend::scatter_rows(table.data(), index.data(), rows.data(), index.shape(0), rows.shape(1), execution);
      },
      Release());
  bind_segment_sum<Backend, float>(module);
  bind_segment_sum<Backend, double>(module);
}

} // namespace hpcgnn
