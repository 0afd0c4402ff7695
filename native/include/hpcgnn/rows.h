// Rows of tables. A negative index gathers zeros and scatters nothing; scattered indices are unique.
#pragma once

#include "hpcgnn/base/execution.h"

namespace hpcgnn {

void gather_rows(const uint8_t *table, const int64_t *index, int64_t n, int64_t row_bytes, uint8_t *out,
                 Execution execution);
void scatter_rows(uint8_t *table, const int64_t *index, const uint8_t *rows, int64_t n, int64_t row_bytes,
                  Execution execution);
// out [segments, width]: sums of rows[order[j]] for j in indptr[s] .. indptr[s + 1] - 1, column by column in this
// order.
template <typename Real>
void segment_sum_rows(const Real *rows, const int64_t *indptr, const int64_t *order, int64_t segments, int64_t width,
                      Real *out, Execution execution);
// Adds to out[i] how many of scores[row[i]] are above threshold[i], and how many are at least as high.
template <typename Real>
void count_reaching(const Real *scores, const int64_t *row, const Real *threshold, int64_t n, int64_t width,
                    int64_t *out, Execution execution);

} // namespace hpcgnn
