#include "tools/python/array.h"

#include <optional>
#include <string>

#include "engine/error.h"
#include "tools/python/array_interface.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

constexpr int kKnownTypes = 8;

const dlpack::ExchangeApi* find_exchange_api(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!api) {
    PyErr_Clear();
    return nullptr;
  }
  while (api && api->version.major != dlpack::kMajorVersion) api = api->previous;
  return api && api->tensor_from_object ? api : nullptr;
}

struct TypeFacts {
  PyObject* type;  // held, so that no other type gets its address
  const dlpack::ExchangeApi* api;
  bool on_host;  // __array_interface__: NumPy, never on a GPU
};

// The last few types are remembered: a serving loop uses one or two, and looking an attribute up
// costs as much as reading the tensor.
const TypeFacts& facts_of(nb::handle type) {
  static TypeFacts known[kKnownTypes];
  static int next = 0;
  for (const TypeFacts& facts : known)
    if (facts.type == type.ptr()) return facts;
  const TypeFacts found{type.ptr(), find_exchange_api(type),
                        nb::hasattr(type, "__array_interface__")};
  TypeFacts& slot = known[next++ % kKnownTypes];
  type.inc_ref();
  nb::handle(slot.type).dec_ref();
  return slot = found;
}

Array array_of(const dlpack::Tensor& t, std::string_view name) {
  const std::int32_t device = t.device.type;
  const bool on_gpu = device == dlpack::kCuda || device == dlpack::kCudaManaged;
  if (!on_gpu && device != dlpack::kCpu && device != dlpack::kCudaHost)
    fail(ErrorKind::invalid_argument,
         "Tensor {} is on a device of DLPack's type {}; heddle reads CPU and CUDA memory.", name,
         device);
  if (t.ndim > Tensor::kMaxRank)
    fail(ErrorKind::invalid_argument, "Tensor {} has {} axes; heddle takes at most {}.", name,
         t.ndim, Tensor::kMaxRank);
  if (t.dtype.lanes != 1)
    fail(ErrorKind::invalid_argument,
         "Tensor {} has vectors of {} lanes as elements; give it plain ones.", name, t.dtype.lanes);
  Array a{.data = static_cast<char*>(t.data) + t.byte_offset,
          .type = t.dtype,
          .rank = t.ndim,
          .place = {on_gpu, on_gpu ? t.device.id : 0}};
  std::int64_t contiguous = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    a.shape[i] = t.shape[i];
    a.strides[i] = t.strides ? t.strides[i] : contiguous;
    contiguous *= t.shape[i];
  }
  return a;
}

bool is_torch(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  return nb::isinstance<nb::str>(module) &&
         std::string_view(nb::borrow<nb::str>(module).c_str()).starts_with("torch");
}

// What __dlpack__ gets as `stream`. PyTorch's tensors belong to its current stream, which run()
// uses too unless it is told another; -1 asks for no event, which a capture could not have.
nb::object stream_wish(nb::handle object, Stream stream) {
  const auto device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
  if (nb::cast<int>(device[0]) != dlpack::kCuda) return nb::none();
  if (is_torch(object)) return nb::int_(-1);
  return nb::int_(stream ? reinterpret_cast<std::uintptr_t>(stream)
                         : 1);  // 1: the legacy default stream
}

nb::object call_dlpack(nb::handle object, const nb::object& wish, bool versioned) {
  static const nb::handle version = nb::make_tuple(dlpack::kMajorVersion, 0).release();
  const nb::object method = object.attr("__dlpack__");
  if (wish.is_none()) return versioned ? method(nb::arg("max_version") = version) : method();
  if (!versioned) return method(nb::arg("stream") = wish);
  return method(nb::arg("max_version") = version, nb::arg("stream") = wish);
}

// Null where the object cannot say it in DLPack: no such dtype, or read-only to an old producer.
nb::object dlpack_capsule(nb::handle object, bool on_host, Stream stream) {
  const nb::object wish = on_host ? nb::none() : stream_wish(object, stream);
  try {
    return call_dlpack(object, wish, true);
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_BufferError) && has_interface(object)) return {};
    if (!error.matches(PyExc_TypeError)) throw;
  }
  try {
    return call_dlpack(object, wish, false);  // it knew no max_version
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_BufferError) && has_interface(object)) return {};
    throw;
  }
}

std::optional<Array> read_capsule(nb::object capsule, std::string_view name) {
  if (!capsule.is_valid()) return std::nullopt;
  Array array;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<const dlpack::VersionedTensor*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajorVersion)
      fail(ErrorKind::invalid_argument, "Tensor {} speaks DLPack {}; heddle speaks {}.", name,
           managed->version.major, dlpack::kMajorVersion);
    array = array_of(managed->tensor, name);
    array.read_only = managed->flags & dlpack::kReadOnly;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    array = array_of(
        static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))
            ->tensor,
        name);
  } else {
    fail(ErrorKind::invalid_argument,
         "Tensor {} answered __dlpack__ with something that is no DLPack capsule.", name);
  }
  // The capsule keeps its name, so it frees what it holds when it goes.
  array.owner = std::move(capsule);
  return array;
}

std::optional<DType> dtype_of(const dlpack::DataType& type) {
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 16:
      return DType::f16;
    case dlpack::kBfloat << 8 | 16:
      return DType::bf16;
    case dlpack::kUInt << 8 | 16:
      return DType::bf16;
    case dlpack::kFloat << 8 | 32:
      return DType::f32;
    case dlpack::kInt << 8 | 32:
      return DType::i32;
    case dlpack::kUInt << 8 | 32:
      return DType::u32;
    case dlpack::kUInt << 8 | 8:
    case dlpack::kBool << 8 | 8:
      return DType::u8;
  }
  return std::nullopt;
}

std::string words_of(const Place& place) {
  return place.on_gpu ? fmt::format("GPU {}", place.ordinal) : std::string("the CPU");
}

}  // namespace

Array read_array(nb::handle object, std::string_view name, Stream stream) {
  const TypeFacts& facts = facts_of(object.type());
  if (facts.api) {
    dlpack::Tensor tensor;
    if (facts.api->tensor_from_object(object.ptr(), &tensor) != 0) nb::raise_python_error();
    return array_of(tensor, name);
  }
  if (nb::hasattr(object, "__dlpack__"))
    if (std::optional<Array> array =
            read_capsule(dlpack_capsule(object, facts.on_host, stream), name))
      return *std::move(array);
  if (has_interface(object)) return read_interface(object, name, stream);
  fail(ErrorKind::invalid_argument,
       "{} is a {}, which is no array; give it as a NumPy array, a PyTorch tensor, or anything "
       "with __dlpack__ or "
       "__cuda_array_interface__.",
       name, nb::str(nb::getattr(object.type(), "__name__")).c_str());
}

Tensor read_tensor(nb::handle object, std::string_view name, const Place& place, Stream stream,
                   bool written, nb::object& owner) {
  Array array = read_array(object, name, stream);
  if (array.place.on_gpu != place.on_gpu ||
      (array.place.ordinal != place.ordinal && array.place.ordinal != kAnyGpu))
    fail(ErrorKind::invalid_argument, "Tensor {} lies on {}; this Attention runs on {}.", name,
         words_of(array.place), words_of(place));
  const std::optional<DType> dtype = dtype_of(array.type);
  if (!dtype)
    fail(ErrorKind::invalid_argument,
         "Tensor {} has elements of {} bits and DLPack's type code {}; heddle reads float16, "
         "bfloat16 (as uint16 in "
         "NumPy), float32, int32, uint32, uint8 and bool.",
         name, array.type.bits, array.type.code);
  if (written && array.read_only)
    fail(ErrorKind::invalid_argument,
         "Tensor {} is read-only, but this call writes it; give a writable one.", name);
  owner = std::move(array.owner);
  return {.data = array.data,
          .dtype = *dtype,
          .rank = array.rank,
          .shape = array.shape,
          .strides = array.strides};
}

Tensor TensorReader::read(nb::handle object, std::string_view name, bool written) {
  nb::object owner;
  const Tensor tensor = read_tensor(object, name, place_, stream_, written, owner);
  if (owner.is_valid()) owners_.push_back(std::move(owner));  // PyTorch's tensors have none
  return tensor;
}

}  // namespace heddle::python
