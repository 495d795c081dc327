// The JSON text of a spec as a tree that remembers where everything stood.
//
// nlohmann/json reads the text; its own tree forgets lines, key order and duplicate keys, all of
// which errors and params need, so the events go into this small one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

struct SpecNode {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text;               // the string, or the number as written
  std::vector<std::string> keys;  // of an object, in the order of the text; no duplicates
  std::vector<SpecNode> items;    // an object's values or an array's elements
  std::string pointer;            // JSON pointer; empty at the root
  int line = 1;                   // where it starts (a string, a number) or opens

  const SpecNode* find(std::string_view key) const;
};

inline constexpr std::size_t kMaxSpecBytes = 1 << 20;
inline constexpr std::size_t kMaxSpecDepth = 16;
inline constexpr std::size_t kMaxSpecMembers = 256;  // keys of one object

// Throws Error with `file`, line and column where the text is not JSON, repeats a key, nests too
// deep or is too long.
SpecNode parse_spec_text(std::string_view text, std::string_view file);

// The value as an error shows it: "soft_cap" in quotes, 3.5, true, an array, an object.
std::string shown(const SpecNode& node);

}  // namespace heddle
