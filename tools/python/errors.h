// heddle::Error as Python exceptions: heddle.Error, and under it one class a family of kinds, which
// is also the built-in exception that a caller would look for.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

void bind_errors(nanobind::module_& m);

}  // namespace heddle::python
