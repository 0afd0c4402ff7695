// Bindings of the write-back into node memory.
#include "hpcgnn/memory.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

template <typename Real> void bind_kernels(nb::module_ module) {
  using Table = MemoryTable<Real>;
  using Write = MemoryWrite<Real>;
  nb::class_<Table> table(module, "MemoryTable");
  bind_fields(table, FIELD(Table, state_width), FIELD(Table, mail_width), FIELD(Table, state), FIELD(Table, mail),
              FIELD(Table, updated), FIELD(Table, mailed), FIELD(Table, delivered));
  table.def(nb::init<>());
  nb::class_<Write> write(module, "MemoryWrite");
  bind_fields(write, FIELD(Write, count), FIELD(Write, rows), FIELD(Write, place), FIELD(Write, state),
              FIELD(Write, rest), FIELD(Write, time));
  write.def(nb::init<>());
  module.def("replace_memory", &replace_memory<Real>, Release());
}

} // namespace

HPCGNN_BINDING(memory) {
  bind_kernels<float>(precision<float>(module));
  bind_kernels<double>(precision<double>(module));
}

} // namespace hpcgnn
