// Variants compiled for the CPU device when the program is built: their units as C++ text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "variants/variant.h"

namespace heddle::tools {

// The units, and `std::span<const BuiltinUnit> heddle::FUNCTION()` by which the engine finds them.
void write_unit_table(std::ostream& out, const std::string& function,
                      const std::vector<const Variant*>& variants);

}  // namespace heddle::tools
