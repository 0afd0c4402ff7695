// The extension module hpcgnn._emulated: the CUDA build's kernels on host threads and host arrays, for tests.
#include "bindings.h"

NB_MODULE(_emulated, module) {
  module.doc() = "The CUDA kernels of hpcgnn on host threads, for tests.";
  nb::set_leak_warnings(false);
  nb::module_::import_("hpcgnn._native"); // its RandomContext
  hpcgnn::bind_cuda(module);
}
