// Array types of the Python faces and the registration functions of the binding units.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "hpcgnn/philox.h"

namespace nb = nanobind;

namespace hpcgnn {

template <typename T, int Dims, typename Device> using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, Device>;

inline void require(bool condition, const char *message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

using Release = nb::call_guard<nb::gil_scoped_release>;

void bind_plan(nb::module_ &module);
void bind_compute(nb::module_ &module);
void bind_layers(nb::module_ &module);
void bind_graph(nb::module_ &module);
void bind_balance(nb::module_ &module);
void bind_neighbor_batches(nb::module_ &module);
void bind_parts(nb::module_ &module);
void bind_cuda(nb::module_ &module);

} // namespace hpcgnn
