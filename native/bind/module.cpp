// A module with kernels, hpcgnn_native.HPCGNN_MODULE: those of the CPU, built for one level of processors; or those of
// CUDA, for devices, or "emulated" on host threads and host arrays, for tests.
#include "bind/bindings.h"

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
  bind_neighbors(module);
  bind_random(module);
  bind_relabel(module);
  bind_rows(module);
  bind_sample(module);
  bind_segment(module);
#if defined(HPCGNN_CUDA_BUILD)
  bind_attention(module);
#else
  module.def("features", &features, "What this build contains.");
  bind_adam(module);
  bind_attention_layer(module);
  bind_encode(module);
  bind_grouped(module);
  bind_gru(module);
  bind_link_decoder(module);
  bind_memory(module);
  bind_neighbor_batch(module);
  bind_owner(module);
  bind_parts(module);
  bind_recurrent(module);
  bind_sage(module);
  bind_workspace(module);
#endif
}
