// A module with the CUDA kernels: hpcgnn_native.cuda for devices, or hpcgnn_native.emulated, the same on host threads
// and host arrays, for tests.
#include "bind/bindings.h"

NB_MODULE(HPCGNN_MODULE, module) {
  module.doc() = "The CUDA kernels of hpcgnn; hpcgnn.native is their documented face.";
  nb::set_leak_warnings(false);
  nb::module_::import_("hpcgnn_native.base"); // its RandomContext
  hpcgnn::bind_cuda(module);
}
