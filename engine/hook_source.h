// A variant's hooks as C++ text: one struct for every skeleton, device and host.
#pragma once

#include <string>
#include <vector>

#include "variants/variant.h"

namespace heddle {

// `struct Hooks` for use inside a namespace that defines Real and the hook maths. `values` are
// Variant::resolve()'s; only those of constant params are written into the text. Every snippet stands
// behind a #line that names its spec file and hook. `first_line` is the number of the unit's line on
// which this text begins, so that numbering goes on right after a snippet. `affine_beside_mask`: logit_form's.
std::string render_hooks(const Variant& variant, const std::vector<double>& values, int first_line,
                         const std::string& unit_path, bool affine_beside_mask = true);

// The text by which a compiled-in unit is found again: the same hooks, whatever the variant's name.
std::string builtin_key(const Variant& variant, const std::vector<double>& values);

// Where a variant's arguments lie in VariantArgs.
struct ArgLayout {
  std::vector<int> tensor_offsets;  // per tensor: pointer, then strides
  std::vector<int> param_offsets;   // per param; -1 for constants
  int bytes = 0;
};
ArgLayout arg_layout(const Variant& variant);

int count_lines(const std::string& text);

}  // namespace heddle
