// Write-back into node memory.
#include "layer_parts.h"

namespace hpcgnn::cpu {

template <typename Real>
void replace_memory(const MemoryTable<Real> &table, const int64_t *rows, int64_t m, const Real *state, const Real *mail,
                    const int64_t *time, int threads) {
  in_parallel(m < 512 ? 1 : threads, [&](const Team &team) {
    const Range mine = team.share(m);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t row = rows[i];
      copy_row(table.state + row * table.state_width, state + i * table.state_width, table.state_width);
      copy_row(table.mail + row * table.mail_width, mail + i * table.mail_width, table.mail_width);
      table.updated[row] = table.delivered[row] > 0 ? table.mailed[row] : time[i];
      table.mailed[row] = time[i];
      table.delivered[row] += 1;
    }
  });
}

template void replace_memory(const MemoryTable<float> &, const int64_t *, int64_t, const float *, const float *,
                             const int64_t *, int);
template void replace_memory(const MemoryTable<double> &, const int64_t *, int64_t, const double *, const double *,
                             const int64_t *, int);

} // namespace hpcgnn::cpu
