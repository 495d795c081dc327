#include "tools/python/array_interface.h"

#include <string>

#include <nanobind/stl/string.h>

#include "engine/error.h"
#include "runtime/driver.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

constexpr const char* kHost = "__array_interface__";
constexpr const char* kCuda = "__cuda_array_interface__";

// "<f2" and its like: byte order, kind, bytes. A bfloat16 array (ml_dtypes) says "<V2", a plain
// void.
dlpack::DataType type_of(nb::handle object, const std::string& words, std::string_view name) {
  const auto refuse = [&] {
    fail(ErrorKind::invalid_argument,
         "Tensor {} has elements of type \"{}\", which heddle does not read.", name, words);
  };
  if (words.size() < 3 || words[0] == '>') refuse();
  const int bytes = words[2] - '0';
  if (words.size() > 3 || bytes < 1 || bytes > 8) refuse();
  const auto bits = static_cast<std::uint8_t>(8 * bytes);
  switch (words[1]) {
    case 'f':
      return {dlpack::kFloat, bits, 1};
    case 'i':
      return {dlpack::kInt, bits, 1};
    case 'u':
      return {dlpack::kUInt, bits, 1};
    case 'b':
      return {dlpack::kBool, bits, 1};
  }
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const nb::object dtype_name = nb::getattr(dtype, "name", nb::none());
  if (nb::isinstance<nb::str>(dtype_name) && dtype_name.equal(nb::str("bfloat16")))
    return {dlpack::kBfloat, bits, 1};
  refuse();
  return {};
}

// Version 3 of the protocol: work on this stream must come first.
void follow(const nb::dict& description, Stream stream) {
  const nb::object producer = description.attr("get")("stream");
  if (producer.is_none()) return;
  const auto from = reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(producer));
  if (from == stream) return;
  const EventHandle event = EventHandle::create();
  event.record(from);
  stream_wait_event(stream, event);
}

void fill_axes(const nb::dict& description, const nb::tuple& shape, std::string_view name,
               Array& array) {
  const nb::object strides = description.attr("get")("strides");
  const std::int64_t bytes = array.type.bits / 8;
  std::int64_t contiguous = 1;
  for (int i = array.rank - 1; i >= 0; --i) {
    array.shape[i] = nb::cast<std::int64_t>(shape[i]);
    const std::int64_t stride =
        strides.is_none() ? contiguous * bytes : nb::cast<std::int64_t>(strides[i]);
    if (stride % bytes != 0)
      fail(ErrorKind::invalid_argument,
           "Tensor {} has a stride of {} bytes on axis {}; its elements have {} bytes.", name,
           stride, i, bytes);
    array.strides[i] = stride / bytes;
    contiguous *= array.shape[i];
  }
}

}  // namespace

bool has_interface(nb::handle object) {
  return nb::hasattr(object, kHost) || nb::hasattr(object, kCuda);
}

Array read_interface(nb::handle object, std::string_view name, Stream stream) {
  const bool on_gpu = !nb::hasattr(object, kHost);
  const auto description = nb::cast<nb::dict>(object.attr(on_gpu ? kCuda : kHost));
  const auto shape = nb::cast<nb::tuple>(description["shape"]);
  const auto data = nb::cast<nb::tuple>(description["data"]);
  Array array{.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0])),
              .type = type_of(object, nb::cast<std::string>(description["typestr"]), name),
              .rank = static_cast<int>(shape.size()),
              .place = {on_gpu, on_gpu ? kAnyGpu : 0},
              .read_only = nb::cast<bool>(data[1])};
  if (array.rank > Tensor::kMaxRank)
    fail(ErrorKind::invalid_argument, "Tensor {} has {} axes; heddle takes at most {}.", name,
         array.rank, Tensor::kMaxRank);
  fill_axes(description, shape, name, array);
  if (on_gpu) follow(description, stream);
  return array;
}

}  // namespace heddle::python
