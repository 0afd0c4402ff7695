// The extension module hpcgnn._native: its features and the binding units.
#include "bindings.h"

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
#else
  result["simd"] = "baseline";
#endif
#if defined(HPCGNN_WITH_CUDA)
  result["cuda"] = true;
#else
  result["cuda"] = false;
#endif
  return result;
}

} // namespace

NB_MODULE(_native, module) {
  module.doc() = "Native kernels of hpcgnn; hpcgnn.native is their documented face.";
  nb::set_leak_warnings(false); // what a script's variables still hold when the interpreter ends
  nb::class_<hpcgnn::RandomContext>(module, "RandomContext")
      .def(
          "__init__",
          [](hpcgnn::RandomContext *self, uint64_t seed, uint32_t stream, uint32_t step, uint32_t epoch, uint32_t hop,
             uint32_t relation) { new (self) hpcgnn::RandomContext{seed, stream, step, epoch, hop, relation}; },
          nb::arg("seed"), nb::arg("stream"), nb::arg("step"), nb::arg("epoch"), nb::arg("hop"), nb::arg("relation"));
  module.def("features", &features, "What this build contains.");
  hpcgnn::bind_plan(module);
  hpcgnn::bind_compute(module);
  hpcgnn::bind_layers(module);
  hpcgnn::bind_graph(module);
  hpcgnn::bind_balance(module);
  hpcgnn::bind_neighbor_batches(module);
  hpcgnn::bind_parts(module);
#if defined(HPCGNN_WITH_CUDA)
  nb::module_ cuda = module.def_submodule("cuda", "The CUDA build of the kernels.");
  hpcgnn::bind_cuda(cuda);
#endif
}
