#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/error.h"
#include "tools/python/bind.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

nb::list params_of(const Variant& variant) {
  nb::list list;
  for (const Param& param : variant.params) {
    nb::dict entry;
    entry["name"] = param.name;
    entry["type"] = param.is_float ? "f32" : "i32";
    entry["default"] = param.has_default ? nb::object(nb::float_(param.default_value)) : nb::none();
    entry["min"] = param.min ? nb::object(nb::float_(*param.min)) : nb::none();
    entry["max"] = param.max ? nb::object(nb::float_(*param.max)) : nb::none();
    entry["constant"] = param.constant;
    entry["doc"] = param.doc;
    list.append(entry);
  }
  return list;
}

nb::list tensors_of(const Variant& variant) {
  nb::list list;
  for (const TensorParam& tensor : variant.tensors) {
    nb::dict entry;
    entry["name"] = tensor.name;
    entry["dtype"] = std::string(name_of(tensor.dtype));
    entry["shape"] = nb::tuple(nb::cast(tensor.shape));
    entry["doc"] = tensor.doc;
    list.append(entry);
  }
  return list;
}

bool is_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{';
}

}  // namespace

Variant read_variant(nb::handle spec, const VariantRegistry& known) {
  if (nb::isinstance<Variant>(spec)) return nb::cast<Variant>(spec);
  if (nb::isinstance<nb::dict>(spec)) {
    const nb::object text = nb::module_::import_("json").attr("dumps")(spec);
    return Variant::from_json(nb::cast<std::string>(text), "<dict>", known);
  }
  if (nb::isinstance<nb::str>(spec)) {
    const auto text = nb::cast<std::string>(spec);
    if (is_json(text)) return Variant::from_json(text, "<str>", known);
    return Variant::from_file(text, known);
  }
  if (nb::hasattr(spec, "__fspath__"))
    return Variant::from_file(nb::cast<std::string>(nb::object(spec.attr("__fspath__")())), known);
  fail(ErrorKind::invalid_argument,
       "A variant was given as a {}; give a dict, JSON text, the path of a JSON file, or a "
       "heddle.Variant.",
       nb::str(spec.type().attr("__name__")).c_str());
}

void bind_variant(nb::module_& m) {
  nb::class_<Variant>(
      m, "Variant",
      "What an attention computes: masks, transforms of q, k, v and logits, params and tensors.\n\n"
      "A spec is code: it runs with the program's rights.")
      .def(
          "__init__",
          [](Variant* self, nb::handle spec, const PyEngine* engine) {
            new (self)
                Variant(read_variant(spec, engine ? engine->engine.variants() : VariantRegistry()));
          },
          nb::arg("spec"), nb::arg("engine") = nb::none(),
          "Reads and checks a spec: a dict, JSON text, or the path of a JSON file.\n\n"
          "`engine` resolves the names under \"compose\"; without it, only built-in variants are "
          "known.")
      .def_ro("name", &Variant::name)
      .def_ro("doc", &Variant::doc)
      .def_ro("file", &Variant::file,
              "Where it came from; \"<dict>\" or \"<str>\" if not from a file.")
      .def_ro("json", &Variant::json, "The spec's text, as given.")
      .def_ro("use_softmax", &Variant::use_softmax)
      .def_prop_ro("params", &params_of,
                   "A dict a param: name, type, default, min, max, constant, doc.")
      .def_prop_ro("tensors", &tensors_of, "A dict a tensor: name, dtype, shape (in words), doc.")
      .def("__repr__", [](const Variant& v) {
        return fmt::format("heddle.Variant({}, from {})", v.name, v.file);
      });
}

}  // namespace heddle::python
