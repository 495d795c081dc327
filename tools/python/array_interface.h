// __array_interface__ and __cuda_array_interface__: arrays described by a dict.
#pragma once

#include <string_view>

#include "tools/python/array.h"

namespace heddle::python {

bool has_interface(nanobind::handle object);

// Requires has_interface(). Where the producer names a stream, `stream` waits for it.
Array read_interface(nanobind::handle object, std::string_view name, Stream stream);

}  // namespace heddle::python
