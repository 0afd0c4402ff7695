// What the bindings of all operations share: arrays of this build's device, checks of shapes, structures that Python
// fills.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "hpcgnn/base/execution.h"

namespace nb = nanobind;

namespace hpcgnn {

#if defined(HPCGNN_HIP_BUILD)
using Device = nb::device::rocm;
#elif defined(HPCGNN_CUDA_BUILD) && !defined(HPCGNN_EMULATED)
using Device = nb::device::cuda;
#else
using Device = nb::device::cpu;
#endif

template <typename T, int Dims> using Input = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, Device>;

// An array that a kernel writes. It is never converted: a copy would be written, and lost.
template <typename T, int Dims> struct Output : Input<T, Dims> {
  Output() = default;
  explicit Output(const Input<T, Dims> &array) : Input<T, Dims>(array) {}
};

template <typename T, int Dims> using Array = std::conditional_t<std::is_const_v<T>, Input<T, Dims>, Output<T, Dims>>;
template <typename T, int Dims> using Maybe = std::optional<Array<T, Dims>>;
using I64 = Array<const int64_t, 1>;

using Release = nb::call_guard<nb::gil_scoped_release>;

inline void require(bool condition, const char *message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

// Of the first two dimensions.
template <typename T> bool has_shape(const T &array, size_t rows, size_t columns) {
  return array.shape(0) == rows && array.shape(1) == columns;
}

template <typename T> auto data_of(const std::optional<T> &array) { return array ? array->data() : nullptr; }

template <typename T> T *at(uintptr_t address) { return reinterpret_cast<T *>(address); }

// Binds fields of a structure, FIELD(Struct, name), ...: numbers as they are, pointers as the addresses of tensors'
// data. Converting arrays would cost more than small layers do, as these have some twenty.
#define FIELD(Struct, name) #name, &Struct::name
template <typename Struct, typename T, typename... Rest>
void bind_fields(nb::class_<Struct> &type, const char *name, T Struct::*field, Rest... rest) {
  if constexpr (std::is_pointer_v<T>) {
    type.def_prop_rw(
        name, [field](const Struct &self) { return reinterpret_cast<uintptr_t>(self.*field); },
        [field](Struct &self, uintptr_t address) { self.*field = reinterpret_cast<T>(address); });
  } else {
    type.def_rw(name, field);
  }
  if constexpr (sizeof...(Rest) > 0) {
    bind_fields(type, rest...);
  }
}

// The submodule with the layers of a precision.
template <typename Real> nb::module_ precision(nb::module_ &module) {
  return module.def_submodule(sizeof(Real) == 4 ? "float32" : "float64");
}

// The bindings of all operations of a module, by name: each registers itself.
using Bind = void (*)(nb::module_ &);
std::map<std::string, Bind> &all_bindings();

struct Binding {
  Binding(const char *name, Bind bind) { all_bindings().emplace(name, bind); }
};

// Begins the function (nb::module_ &module) that binds an operation.
#define HPCGNN_BINDING(operation)                                                                                      \
  static void bind_##operation(nb::module_ &module);                                                                   \
  static const Binding binding_of_##operation(#operation, bind_##operation);                                           \
  static void bind_##operation(nb::module_ &module)

} // namespace hpcgnn

namespace nanobind::detail {

template <typename T, int Dims> struct type_caster<hpcgnn::Output<T, Dims>> {
  using Base = make_caster<hpcgnn::Input<T, Dims>>;
  using Output = hpcgnn::Output<T, Dims>;
  NB_TYPE_CASTER(Output, Base::Name)

  bool from_python(handle source, uint8_t flags, cleanup_list *cleanup) noexcept {
    Base base;
    if (!base.from_python(source, flags & ~static_cast<uint8_t>(cast_flags::convert), cleanup)) {
      return false;
    }
    value = Output(base.value);
    return true;
  }
};

} // namespace nanobind::detail
