// Packs a variant's tensors and params into the bytes that its hooks read.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hook_source.h"

namespace heddle {

// `values` are Variant::resolve()'s.
void pack_params(const Variant& variant, const ArgLayout& layout, const std::vector<double>& values, VariantArgs& args);

// Checks that exactly the spec's tensors are given, their dtypes and ranks, and the sizes that `words` and
// `values` (Variant::resolve()'s) know.
void pack_tensors(const Variant& variant, const ArgLayout& layout, const std::map<std::string, Tensor>& tensors,
                  const ShapeWords& words, const std::vector<double>& values, VariantArgs& args);

}  // namespace heddle
