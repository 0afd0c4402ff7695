// A module with all CPU kernels, hpcgnn_native.HPCGNN_MODULE: one build of them for one level of processors.
#include "bind/bindings.h"

namespace {

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

} // namespace

NB_MODULE(HPCGNN_MODULE, module) {
  module.doc() = "Native kernels of hpcgnn; hpcgnn.native is their documented face.";
  nb::set_leak_warnings(false);
  nb::module_ base = nb::module_::import_("hpcgnn_native.base");
  module.attr("RandomContext") = base.attr("RandomContext");
  module.def("features", &features, "What this build contains.");
  hpcgnn::bind_plan(module);
  hpcgnn::bind_compute(module);
  hpcgnn::bind_layers(module);
  hpcgnn::bind_graph(module);
  hpcgnn::bind_balance(module);
  hpcgnn::bind_neighbor_batches(module);
  hpcgnn::bind_parts(module);
}
