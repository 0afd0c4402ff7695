// The module hpcgnn_native.base, which every processor runs: what this one can do, and the types that the other
// modules share.
#include "bind/bindings.h"
#include "hpcgnn/random.h"

namespace {

// The levels of the x86-64 ABI that this processor and operating system support, lowest first; none elsewhere.
nb::list processor_levels() {
  nb::list result;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v3) {
    result.append("x86_64_v3");
  }
  if (v4) {
    result.append("x86_64_v4");
  }
#endif
  return result;
}

} // namespace

NB_MODULE(base, module) {
  module.doc() = "What the processor can do, and the types that all kernels share.";
  nb::set_leak_warnings(false); // what a script's variables still hold when the interpreter ends
  nb::class_<hpcgnn::RandomContext>(module, "RandomContext")
      .def(
          "__init__",
          [](hpcgnn::RandomContext *self, uint64_t seed, uint32_t stream, uint32_t step, uint32_t epoch, uint32_t hop,
             uint32_t relation) { new (self) hpcgnn::RandomContext{seed, stream, step, epoch, hop, relation}; },
          nb::arg("seed"), nb::arg("stream"), nb::arg("step"), nb::arg("epoch"), nb::arg("hop"), nb::arg("relation"));
  module.def("processor_levels", &processor_levels,
             "Levels of the x86-64 ABI that this processor supports, lowest first.");
}
