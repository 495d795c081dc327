// Random compositions of the built-in variants, the same in every build: a build step compiles them
// for the CPU device (tests/render_compositions.cc), so that testing many costs a test little.
#pragma once

#include <string>

#include "variants/variant.h"

namespace heddle_tests {

inline constexpr int kCompositions = 64;

std::string composition_name(int index);

// Adds kCompositions of them. Throws what a composition was refused for, unless it is that its parts
// may not stand together.
void add_compositions(heddle::VariantRegistry& registry);

}  // namespace heddle_tests
