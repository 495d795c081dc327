#include "tools/python/errors.h"

#include <array>

#include "engine/error.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

// By ErrorKind. Held until the process ends: an error may be translated at any moment.
std::array<PyObject*, 6> classes{};

PyObject* make_class(nb::module_& m, const char* name, const char* doc, PyObject* bases) {
  const std::string full = std::string("heddle.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases, nullptr);
  if (!made) nb::raise_python_error();
  m.attr(name) = nb::handle(made);
  return made;
}

PyObject* make_class(nb::module_& m, const char* name, const char* doc, PyObject* base,
                     PyObject* builtin) {
  return make_class(m, name, doc, nb::make_tuple(nb::handle(base), nb::handle(builtin)).ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(classes[static_cast<std::size_t>(error.kind())], error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& m) {
  PyObject* error = make_class(
      m, "Error", "Base of what heddle raises; the message is a full sentence.", nullptr);
  PyObject* input = make_class(
      m, "InputError", "A spec, batch, tensor, option or file that the caller gave is wrong.",
      error, PyExc_ValueError);
  const auto kind = [](ErrorKind k) -> PyObject*& { return classes[static_cast<std::size_t>(k)]; };
  kind(ErrorKind::invalid_spec) = input;
  kind(ErrorKind::invalid_argument) = input;
  kind(ErrorKind::unsupported) =
      make_class(m, "UnsupportedError", "Valid, but not on this device or in this build.", error,
                 PyExc_NotImplementedError);
  kind(ErrorKind::compile_failed) =
      make_class(m, "CompileError", "NVRTC or the host's compiler refused a variant.", error,
                 PyExc_RuntimeError);
  kind(ErrorKind::driver) =
      make_class(m, "DriverError", "A call of the CUDA driver failed.", error, PyExc_RuntimeError);
  kind(ErrorKind::io) =
      make_class(m, "FileError", "A file could not be read or written.", error, PyExc_OSError);
  nb::register_exception_translator(translate);
}

}  // namespace heddle::python
