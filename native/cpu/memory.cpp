// Write-back into node memory.
#include "hpcgnn/memory.h"

#include "cpu/shared/layer_parts.h"

namespace hpcgnn {

template <typename Real>
void replace_memory(const MemoryTable<Real> &table, const MemoryWrite<Real> &write, int threads) {
  const int64_t own = table.state_width, rest_width = table.mail_width - own;
  in_parallel(write.count < 512 ? 1 : threads, [&](const Team &team) {
    const Range part = team.share(write.count);
    for (int64_t i = part.begin; i < part.end; ++i) {
      const int64_t row = write.rows[i];
      const Real *state = write.state + (write.place == nullptr ? i : write.place[i]) * own;
      Real *mail = table.mail + row * table.mail_width;
      copy_row(table.state + row * own, state, own);
      copy_row(mail, state, own);
      copy_row(mail + own, write.rest + i * rest_width, rest_width);
      table.updated[row] = table.delivered[row] > 0 ? table.mailed[row] : write.time[i];
      table.mailed[row] = write.time[i];
      table.delivered[row] += 1;
    }
  });
}

template void replace_memory(const MemoryTable<float> &, const MemoryWrite<float> &, int);
template void replace_memory(const MemoryTable<double> &, const MemoryWrite<double> &, int);

} // namespace hpcgnn
