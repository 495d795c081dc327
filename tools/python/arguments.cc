#include "tools/python/arguments.h"

#include <limits>
#include <optional>
#include <string>

#include "engine/error.h"
#include "runtime/driver.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

// torch._C._cuda_getCurrentRawStream(ordinal), which PyTorch's own compiler calls for this purpose:
// 60 ns, where torch.cuda.current_stream() takes over a microsecond. Null without PyTorch or in its
// builds for the CPU. Never imports it.
nb::handle torch_stream_function() {
  static PyObject* function = nullptr;  // kept once found
  if (function) return function;
  const nb::str name("torch");
  const nb::object torch = nb::steal(PyImport_GetModule(name.ptr()));
  if (!torch.is_valid()) {
    PyErr_Clear();
    return {};
  }
  nb::object found =
      nb::getattr(nb::getattr(torch, "_C", nb::none()), "_cuda_getCurrentRawStream", nb::none());
  if (found.is_none()) return {};
  function = found.release().ptr();
  return function;
}

Stream stream_of(nb::handle number) {
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(number));
}

std::string dtype_word(nb::handle dtype) {
  // A NumPy scalar type prints as a class; its __name__ is the word. str() of a torch.dtype has
  // "torch.".
  std::string word =
      nb::hasattr(dtype, "__name__") ? text_of(dtype.attr("__name__")) : text_of(dtype);
  if (word.starts_with("torch.")) word.erase(0, 6);
  return word;
}

std::optional<DType> float_of(std::string_view word) {
  for (const auto& [known, value] : {std::pair{"bf16", DType::bf16},
                                     {"bfloat16", DType::bf16},
                                     {"f16", DType::f16},
                                     {"float16", DType::f16},
                                     {"half", DType::f16},
                                     {"f32", DType::f32},
                                     {"float32", DType::f32}})
    if (word == known) return value;
  return std::nullopt;
}

std::int32_t checked_int(std::int64_t value, std::string_view name, std::size_t index) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max())
    fail(ErrorKind::invalid_argument, "{}[{}] is {}, which does not fit 32 bits.", name, index,
         value);
  return static_cast<std::int32_t>(value);
}

}  // namespace

Stream read_stream(nb::handle stream, const Place& place) {
  if (stream.is_none()) {
    if (!place.on_gpu) return nullptr;
    const nb::handle function = torch_stream_function();
    return function.is_valid() ? stream_of(function(place.ordinal)) : nullptr;
  }
  if (nb::isinstance<nb::int_>(stream)) return stream_of(stream);
  if (nb::hasattr(stream, "cuda_stream")) return stream_of(stream.attr("cuda_stream"));
  if (nb::hasattr(stream, "__cuda_stream__"))
    return stream_of(nb::object(stream.attr("__cuda_stream__")())[1]);
  fail(ErrorKind::invalid_argument,
       "stream is {}; give an integer (a CUstream), a torch.cuda.Stream, an object with "
       "__cuda_stream__, or None for "
       "the current one.",
       text_of(nb::repr(stream)));
}

DType read_dtype(nb::handle dtype) {
  const std::string word = dtype_word(dtype);
  const std::optional<DType> known = float_of(word);
  if (known && known != DType::f32) return *known;
  fail(ErrorKind::invalid_argument,
       "dtype {} is not one that q, k and v can have; bf16 (bfloat16) and f16 (float16) are.",
       word);
}

DType read_state_dtype(nb::handle dtype) {
  const std::string word = dtype_word(dtype);
  if (const std::optional<DType> known = float_of(word)) return *known;
  fail(ErrorKind::invalid_argument,
       "dtype {} is not one that states can have; f32 (float32), bf16 (bfloat16) and f16 (float16) "
       "are.",
       word);
}

AppendKv read_append_kv(std::string_view word) {
  for (const AppendKv mode : {AppendKv::none, AppendKv::copy, AppendKv::transform})
    if (word == name_of(mode)) return mode;
  fail(ErrorKind::invalid_argument,
       "append_kv is \"{}\"; it must be \"none\", \"copy\" or \"transform\".", word);
}

KvLayout read_layout(std::string_view layout) {
  if (layout == "NHD") return KvLayout::NHD;
  if (layout == "HND") return KvLayout::HND;
  fail(ErrorKind::invalid_argument,
       "layout is \"{}\"; it must be \"NHD\" ([page_size, heads, dim]) or \"HND\" ([heads, "
       "page_size, dim]).",
       layout);
}

void read_device(nb::handle device, EngineOptions& options) {
  const std::string word = text_of(device);
  if (word == "auto") return;
  if (word == "cpu") {
    options.device = DeviceKind::cpu;
    return;
  }
  const std::string_view number =
      std::string_view(word).starts_with("cuda:") ? std::string_view(word).substr(5) : "";
  const bool is_number =
      !number.empty() && number.size() < 4 && number.find_first_not_of("0123456789") == number.npos;
  if (word != "cuda" && !is_number)
    fail(ErrorKind::invalid_argument, "device is \"{}\"; it must be auto, cpu, cuda or cuda:N.",
         word);
  options.device = DeviceKind::cuda;
  if (is_number) options.ordinal = std::stoi(std::string(number));
}

HostInts::HostInts(nb::handle object, std::string_view name, Stream stream, bool copy) {
  if (object.is_none()) return;
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()))
    read_sequence(object, name);
  else
    read_array(python::read_array(object, name, stream), name, stream, copy);
}

void HostInts::read_sequence(nb::handle object, std::string_view name) {
  const bool is_list = PyList_Check(object.ptr());
  const std::size_t size = nb::len(object);
  own_.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    PyObject* item = is_list ? PyList_GetItem(object.ptr(), i) : PyTuple_GetItem(object.ptr(), i);
    if (!item) nb::raise_python_error();
    const nb::object index = nb::steal(PyNumber_Index(item));  // NumPy's integers too, floats not
    const long long value = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
    if (value == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      fail(ErrorKind::invalid_argument, "{}[{}] is {}; it must be a 32-bit integer.", name, i,
           text_of(nb::repr(item)));
    }
    own_.push_back(checked_int(value, name, i));
  }
  values_ = own_;
}

void HostInts::read_array(const Array& array, std::string_view name, Stream stream, bool copy) {
  owner_ = array.owner;
  if (array.rank != 1)
    fail(ErrorKind::invalid_argument, "{} has {} axes; it needs one.", name, array.rank);
  if (array.type.code != dlpack::kInt || (array.type.bits != 32 && array.type.bits != 64))
    fail(ErrorKind::invalid_argument,
         "{} has elements of {} bits and DLPack's type code {}; it needs int32 or int64.", name,
         array.type.bits, array.type.code);
  const auto size = static_cast<std::size_t>(array.shape[0]);
  const bool in_order = array.strides[0] == 1 || size <= 1;
  if (!array.place.on_gpu) {
    if (!in_order || array.type.bits != 32) return convert(array, array.data, name);
    values_ = {static_cast<const std::int32_t*>(array.data), size};
    return;
  }
  if (!copy)
    fail(ErrorKind::invalid_argument,
         "{} lies on GPU {}, but plan() works on the host; give it as a list or an array on the "
         "CPU, or pass copy=True "
         "to fetch it, which waits for the stream.",
         name, array.place.ordinal);
  if (!in_order)
    fail(ErrorKind::invalid_argument,
         "{} has stride {}; an array that is fetched from the GPU must be contiguous.", name,
         array.strides[0]);
  std::vector<std::byte> fetched(size * array.type.bits / 8);
  {
    const nb::gil_scoped_release release;
    synchronize(stream);
    copy_to_host(fetched.data(), array.data, fetched.size());
  }
  convert(array, fetched.data(), name);
}

void HostInts::convert(const Array& array, const void* data, std::string_view name) {
  const std::int64_t stride = array.place.on_gpu ? 1 : array.strides[0];
  own_.reserve(static_cast<std::size_t>(array.shape[0]));
  for (std::int64_t i = 0; i < array.shape[0]; ++i) {
    const std::int64_t value = array.type.bits == 32
                                   ? static_cast<const std::int32_t*>(data)[i * stride]
                                   : static_cast<const std::int64_t*>(data)[i * stride];
    own_.push_back(checked_int(value, name, static_cast<std::size_t>(i)));
  }
  values_ = own_;
}

}  // namespace heddle::python
