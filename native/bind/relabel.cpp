// Bindings of relabeling, winners and index transposes, which need scratch memory on CUDA.
#include "hpcgnn/relabel.h"

#include "bind/bindings.h"

namespace hpcgnn {

#if defined(HPCGNN_CUDA_BUILD)

namespace {

DeviceScratch scratch_of(const Array<uint8_t, 1> &array) {
  return {array.data(), static_cast<int64_t>(array.shape(0))};
}

} // namespace

HPCGNN_BINDING(relabel) {
  module.def("unique_relabel_scratch_bytes", &unique_relabel_scratch_bytes);
  module.def(
      "unique_relabel",
      [](I64 ids, Array<int64_t, 1> unique, Array<int32_t, 1> inverse, Array<int64_t, 1> count,
         Array<uint8_t, 1> scratch, int64_t stream) {
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0),
                "unique and inverse as long as ids");
        require(count.shape(0) == 1, "count [1]");
        unique_relabel(ids.data(), ids.shape(0), unique.data(), inverse.data(), count.data(), scratch_of(scratch),
                       stream);
      },
      Release());
  module.def("last_event_scratch_bytes", &last_event_scratch_bytes);
  module.def(
      "last_event",
      [](I64 nodes, I64 events, Array<uint8_t, 1> winner, Array<uint8_t, 1> scratch, int64_t stream) {
        require(nodes.shape(0) == events.shape(0) && nodes.shape(0) == winner.shape(0),
                "nodes, events and winner alike");
        last_event(nodes.data(), events.data(), nodes.shape(0), winner.data(), scratch_of(scratch), stream);
      },
      Release());
  module.def("transpose_index_scratch_bytes", &transpose_index_scratch_bytes);
  module.def(
      "transpose_index",
      [](Array<const int32_t, 1> index, Array<int64_t, 1> indptr, Array<int64_t, 1> order, Array<uint8_t, 1> scratch,
         int64_t stream) {
        require(indptr.shape(0) >= 1 && order.shape(0) == index.shape(0),
                "indptr [targets + 1], order as long as index");
        transpose_index(index.data(), index.shape(0), indptr.shape(0) - 1, indptr.data(), order.data(),
                        scratch_of(scratch), stream);
      },
      Release());
}

#else

namespace {

nb::object unique_of(const Relabeler &relabeler) {
  auto *shared = new std::shared_ptr<int64_t[]>(relabeler.unique());
  nb::capsule owner(shared, [](void *pointer) noexcept { delete static_cast<std::shared_ptr<int64_t[]> *>(pointer); });
  return nb::cast(
      nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(shared->get(), {static_cast<size_t>(relabeler.size())}, owner));
}

void add_ids(Relabeler &relabeler, const I64 &ids, const Array<int32_t, 1> &position) {
  require(ids.shape(0) == position.shape(0), "ids and position must have the same length");
  const int64_t wrong = relabeler.add(ids.data(), static_cast<int64_t>(ids.shape(0)), position.data());
  if (wrong != -1) {
    throw std::invalid_argument("id " + std::to_string(wrong) + " is not below " +
                                std::to_string(relabeler.num_nodes()));
  }
}

} // namespace

HPCGNN_BINDING(relabel) {
  module.def(
      "unique_relabel",
      [](I64 ids, Array<int64_t, 1> unique, Array<int32_t, 1> inverse) {
        require(unique.shape(0) == ids.shape(0) && inverse.shape(0) == ids.shape(0),
                "unique and inverse as long as ids");
        return unique_relabel(ids.data(), ids.shape(0), unique.data(), inverse.data());
      },
      Release());
  module.def(
      "last_event",
      [](I64 nodes, I64 events, Array<uint8_t, 1> winner) {
        require(nodes.shape(0) == events.shape(0) && nodes.shape(0) == winner.shape(0),
                "nodes, events and winner alike");
        last_event(nodes.data(), events.data(), nodes.shape(0), winner.data());
      },
      Release());
  module.def(
      "transpose_index",
      [](Array<const int32_t, 1> index, Array<int64_t, 1> indptr, Array<int64_t, 1> order) {
        require(indptr.shape(0) >= 1 && order.shape(0) == index.shape(0),
                "indptr [targets + 1], order as long as index");
        transpose_index(index.data(), index.shape(0), indptr.shape(0) - 1, indptr.data(), order.data());
      },
      Release());
  nb::class_<Relabeler>(module, "Relabeler")
      .def(nb::init<int64_t, bool>())
      .def("begin", &Relabeler::begin, Release())
      .def("add", &add_ids, Release())
      .def("unique", &unique_of);
}

#endif

} // namespace hpcgnn
