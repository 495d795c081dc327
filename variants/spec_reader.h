// One spec's JSON as typed data, checked as far as one spec alone can be.
//
// What needs other specs ("compose") is left as names; variants/compose.h resolves them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "variants/variant.h"

namespace heddle {

struct ComposedName {
  std::string name;
  std::string where;  // "gemma2.json, line 4: /compose/1", as an error's sentence starts
};

struct Spec {
  std::string name;
  std::string doc;
  std::string file;
  std::string json;
  std::string where;  // "gemma2.json, line 4: /compose", for errors that concern all parts
  std::vector<ComposedName> compose;  // empty: the spec stands alone
  // The spec's own part. Bounds index these params.
  std::vector<Param> params;
  std::vector<TensorParam> tensors;
  std::map<Hook, HookCode> hooks;
  DeclaredMask mask;
  std::optional<bool> use_softmax;  // as said, if said

  bool has_own_part() const {
    return compose.empty() || !params.empty() || !tensors.empty() || !hooks.empty() ||
           mask.causal || !mask.window_left.empty() || !mask.window_right.empty() ||
           mask.rows_given || use_softmax.has_value();
  }
};

// Throws Error(invalid_spec) with the file, the line, the JSON pointer, the value found and what is
// allowed.
Spec read_spec(std::string_view text, std::string_view file);

// The name's last part: "gemma2.json" of "models/gemma2.json".
std::string base_name(std::string_view path);

}  // namespace heddle
