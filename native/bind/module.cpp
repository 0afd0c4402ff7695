// A module with kernels, hpcgnn_native.HPCGNN_MODULE: those of the CPU, built for one level of processors; or those of
// CUDA, for devices, or "emulated" on host threads and host arrays, for tests.
#include "bind/bindings.h"

namespace hpcgnn {

std::map<std::string, Bind> &all_bindings() {
  static std::map<std::string, Bind> bindings; // made by the first that registers itself, before the module is
  return bindings;
}

} // namespace hpcgnn

namespace {

#if !defined(HPCGNN_CUDA_BUILD)
nb::dict features() {
  nb::dict result;
#if defined(_OPENMP)
  result["openmp"] = true;
#else
  result["openmp"] = false;
#endif
#if defined(__AVX512F__)
  result["simd"] = "avx512";
#elif defined(__AVX2__)
  result["simd"] = "avx2";
#elif defined(__aarch64__)
  result["simd"] = "neon";
#else
  result["simd"] = "baseline";
#endif
  return result;
}
#endif

} // namespace

NB_MODULE(HPCGNN_MODULE, module) {
  using namespace hpcgnn;
  module.doc() = "Native kernels of hpcgnn; hpcgnn.native is their documented face.";
  nb::set_leak_warnings(false); // what a script's variables still hold when the interpreter ends
  nb::module_ base = nb::module_::import_("hpcgnn_native.base");
  module.attr("RandomContext") = base.attr("RandomContext");
#if !defined(HPCGNN_CUDA_BUILD)
  module.def("features", &features, "What this build contains.");
#endif
  for (const auto &[name, bind] : all_bindings()) {
    bind(module);
  }
}
