// Packs a variant's tensors and params into the bytes that its hooks read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/hook_source.h"

namespace heddle {

// `values` are Variant::resolve()'s. Checks that exactly the spec's tensors are given, their dtypes and
// ranks, and the sizes that `words` knows ("num_qo_heads" -> 32).
VariantArgs pack_args(const Variant& variant, const ArgLayout& layout, const std::vector<double>& values,
                      const std::map<std::string, Tensor>& tensors, const std::map<std::string, std::int64_t>& words);

}  // namespace heddle
