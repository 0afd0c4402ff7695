// Tensors in memory of the workspace.
#include "hpcgnn/workspace.h"

#include "bind/bindings.h"

namespace hpcgnn {
namespace {

// Rows in memory of the workspace, which goes back when the tensor does.
template <typename Real> nb::ndarray<nb::pytorch, Real, nb::ndim<2>> workspace_rows(int64_t count, int64_t width) {
  auto *memory = new Buffer<Real>(count * width);
  nb::capsule owner(memory, [](void *pointer) noexcept { delete static_cast<Buffer<Real> *>(pointer); });
  return {memory->data(), {static_cast<size_t>(count), static_cast<size_t>(width)}, owner};
}

} // namespace

HPCGNN_BINDING(workspace) {
  module.def("workspace_rows32", &workspace_rows<float>);
  module.def("workspace_rows64", &workspace_rows<double>);
}

} // namespace hpcgnn
