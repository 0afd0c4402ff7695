// Bindings of rows: gather, scatter, sums, counts.
#include "hpcgnn/rows.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_segment_sum(nb::module_ &module) {
  module.def(
      "segment_sum_rows",
      [](Array<const Real, 2> rows, I64 indptr, I64 order, Array<Real, 2> out, int64_t execution) {
        require(indptr.shape(0) == out.shape(0) + 1 && rows.shape(1) == out.shape(1),
                "indptr [segments + 1], equal widths");
        segment_sum_rows<Real>(rows.data(), indptr.data(), order.data(), out.shape(0), out.shape(1), out.data(),
                               execution);
      },
      Release());
}

template <typename Real> void bind_count_reaching(nb::module_ &module) {
  module.def(
      "count_reaching",
      [](Array<const Real, 2> scores, I64 row, Array<const Real, 1> threshold, Array<int64_t, 1> out,
         int64_t execution) {
        require(row.shape(0) == threshold.shape(0) && row.shape(0) == out.shape(0), "row, threshold and out [n]");
        count_reaching<Real>(scores.data(), row.data(), threshold.data(), row.shape(0), scores.shape(1), out.data(),
                             execution);
      },
      Release());
}

} // namespace

HPCGNN_BINDING(rows) {
  module.def(
      "gather_rows",
      [](Array<const uint8_t, 2> table, I64 index, Array<uint8_t, 2> out, int64_t execution) {
        require(index.shape(0) == out.shape(0) && table.shape(1) == out.shape(1),
                "index and out rows, equal row widths");
        gather_rows(table.data(), index.data(), index.shape(0), out.shape(1), out.data(), execution);
      },
      Release());
  module.def(
      "scatter_rows",
      [](Array<uint8_t, 2> table, I64 index, Array<const uint8_t, 2> rows, int64_t execution) {
        require(index.shape(0) == rows.shape(0) && table.shape(1) == rows.shape(1), "index and rows, equal row widths");
        scatter_rows(table.data(), index.data(), rows.data(), index.shape(0), rows.shape(1), execution);
      },
      Release());
  bind_segment_sum<float>(module);
  bind_segment_sum<double>(module);
  bind_count_reaching<float>(module);
  bind_count_reaching<double>(module);
}

} // namespace hpcgnn
