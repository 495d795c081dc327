// Packs a variant's tensors and params into the bytes that its hooks read.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hook_source.h"

namespace heddle {

// What the words in the shapes of a variant's tensors stand for; -1: not known.
struct ShapeWords {
  std::int64_t num_qo_heads = -1, num_kv_heads = -1, head_dim = -1, num_qo_rows = -1, kv_len = -1, num_requests = -1;
  std::int64_t find(std::string_view word) const;
};

// `values` are Variant::resolve()'s.
void pack_params(const Variant& variant, const ArgLayout& layout, const std::vector<double>& values, VariantArgs& args);

// Checks that exactly the spec's tensors are given, their dtypes and ranks, and the sizes that `words` knows.
void pack_tensors(const Variant& variant, const ArgLayout& layout, const std::map<std::string, Tensor>& tensors,
                  const ShapeWords& words, VariantArgs& args);

}  // namespace heddle
