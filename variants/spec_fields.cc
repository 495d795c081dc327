#include "variants/spec_fields.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "variants/hook_code.h"
#include "variants/nearest.h"

namespace heddle {

std::string SpecFields::where(const SpecNode& node) const {
  return fmt::format("{}, line {}: {}", file_, node.line,
                     node.pointer.empty() ? "the spec" : node.pointer);
}

void SpecFields::refuse(const SpecNode& node, std::string_view allowed) const {
  fail(ErrorKind::invalid_spec, "{} is {}, but it must be {}.", where(node), shown(node), allowed);
}

const SpecNode& SpecFields::object(const SpecNode& node) const {
  if (node.kind != SpecNode::Kind::object) refuse(node, "an object");
  return node;
}

const SpecNode& SpecFields::array(const SpecNode& node, std::string_view of_what) const {
  if (node.kind != SpecNode::Kind::array) refuse(node, of_what);
  return node;
}

const std::string& SpecFields::string(const SpecNode& node, std::string_view what) const {
  if (node.kind != SpecNode::Kind::string) refuse(node, what);
  return node.text;
}

bool SpecFields::boolean(const SpecNode& node) const {
  if (node.kind != SpecNode::Kind::boolean) refuse(node, "true or false");
  return node.boolean;
}

double SpecFields::number(const SpecNode& node, bool is_float) const {
  if (node.kind != SpecNode::Kind::number) {
    refuse(node, is_float ? "a number" : "a whole number");
  }
  if (is_float) {
    if (!std::isfinite(node.number) || std::abs(node.number) > FLT_MAX) {
      refuse(node, "a finite f32, at most 3.4028235e+38 in size");
    }
    return node.number;
  }
  using Limits = std::numeric_limits<std::int32_t>;
  if (node.number != std::floor(node.number) || node.number < Limits::min() ||
      node.number > Limits::max()) {
    refuse(node, "a whole number from -2147483648 to 2147483647");
  }
  return node.number;
}

double SpecFields::element(const SpecNode& node, DType dtype) const {
  if (dtype != DType::u8 && dtype != DType::u32) return number(node, dtype != DType::i32);
  const double most = dtype == DType::u8 ? 255 : 4294967295.0;
  if (node.kind != SpecNode::Kind::number || node.number != std::floor(node.number) ||
      node.number < 0 || node.number > most) {
    refuse(node, fmt::format("a whole number from 0 to {:.0f}", most));
  }
  return node.number;
}

const SpecNode& SpecFields::required(const SpecNode& node, std::string_view key,
                                     std::string_view what) const {
  const SpecNode* found = node.find(key);
  if (found == nullptr) {
    fail(ErrorKind::invalid_spec, "{} has no \"{}\"; it must give {}.", where(node), key, what);
  }
  return *found;
}

std::string SpecFields::optional_string(const SpecNode& node, std::string_view key) const {
  const SpecNode* found = node.find(key);
  return found == nullptr ? std::string() : string(*found);
}

void SpecFields::check_keys(const SpecNode& node, const std::vector<std::string>& allowed,
                            std::string_view what) const {
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    if (std::find(allowed.begin(), allowed.end(), node.keys[i]) != allowed.end()) continue;
    fail(ErrorKind::invalid_spec, "{} is not a key of {}; {}.", where(node.items[i]), what,
         offer(node.keys[i], allowed));
  }
}

std::string SpecFields::word(const SpecNode& node, const std::vector<std::string>& allowed,
                             std::string_view what) const {
  const std::string& text = string(node, "one of " + comma_list(allowed));
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
    fail(ErrorKind::invalid_spec, "{} is {}, which is not {}; {}.", where(node), in_quotes(text),
         what, offer(text, allowed));
  }
  return text;
}

void SpecFields::check_name(const SpecNode& at, std::string_view name,
                            std::string_view what) const {
  constexpr std::size_t kMaxName = 64;
  if (!is_c_identifier(name)) {
    fail(ErrorKind::invalid_spec,
         "{} names {} {}, but a name must be a C identifier: letters, digits and single "
         "underscores, "
         "no digit first.",
         where(at), what, in_quotes(name));
  }
  if (name.size() > kMaxName) {
    fail(ErrorKind::invalid_spec,
         "{} names {} {} with {} characters, but a name may have at most {}.", where(at), what,
         in_quotes(name), name.size(), kMaxName);
  }
  if (is_reserved_word(name)) {
    fail(ErrorKind::invalid_spec,
         "{} names {} {}, which is a word of C++ or of the hooks; choose another.", where(at), what,
         in_quotes(name));
  }
}

}  // namespace heddle
