// heddle._core: the engine's public API for Python. The package's modules re-export it.
//
//   errors     heddle::Error as Python exceptions
//   array      tensors by DLPack and the array interfaces, no framework imported
//   arguments  streams, dtypes, layouts and lists of lengths as callers write them
//   bind_*     the classes
//
// plan() and run() are called in every step and layer, so nothing in them is done in Python. The
// GIL is released while something compiles, while a batch is planned and while the CPU device runs.
#include <nanobind/nanobind.h>

#include "engine/types.h"
#include "tools/python/bind.h"
#include "tools/python/errors.h"

NB_MODULE(_core, m) {
  m.doc() = "heddle's engine: variants, attentions, plan and run.";
  m.attr("__version__") = nanobind::str(heddle::kVersion.data(), heddle::kVersion.size());
  heddle::python::bind_errors(m);
  heddle::python::bind_variant(m);
  heddle::python::bind_engine(m);
  heddle::python::bind_attention(m);
  heddle::python::bind_merge(m);
  heddle::python::bind_cache(m);
}
