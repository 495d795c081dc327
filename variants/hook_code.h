// What a hook's code must not do before any compiler sees it.
//
// A hook is pasted into a function of the rendered unit. These checks do not make a spec safe (a
// spec is code and runs with the program's rights); they make a mistake show up as a sentence
// about the spec instead of as a compiler error somewhere in the unit, and they keep a hook inside
// its function: braces balance, no directive, no line continuation, no asm.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "variants/variant.h"

namespace heddle {

// What the code may name.
struct HookScope {
  Hook hook = Hook::logits_transform;
  RotaryPair pair = RotaryPair::none;
  std::vector<std::string> params;
  std::vector<std::string> tensors;
};

// Throws Error; its sentence starts with `where` ("soft_cap.json, line 4: /hooks/logits_mask").
void check_hook_code(std::string_view where, std::string_view code, const HookScope& scope);

// A word that no param, tensor or variant may be called: C++ keywords and what hooks see.
bool is_reserved_word(std::string_view word);
// A word of hooks that is a request's own, or counted from its first key: what another request's row would read otherwise.
bool is_request_word(std::string_view word);
// [A-Za-z_][A-Za-z0-9_]*, without a double underscore.
bool is_c_identifier(std::string_view word);

}  // namespace heddle
