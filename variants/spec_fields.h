// The steps that every part of a spec is read with: typed access to a node, and the refusals.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "templates/abi.h"
#include "variants/spec_text.h"

namespace heddle {

class SpecFields {
 public:
  explicit SpecFields(std::string_view file) : file_(file) {}

  // "soft_cap.json, line 4: /params/cap", or "soft_cap.json, line 1: the spec".
  std::string where(const SpecNode& node) const;

  // Refuses with "<where> is <value>, but it must be <allowed>."
  [[noreturn]] void refuse(const SpecNode& node, std::string_view allowed) const;

  const SpecNode& object(const SpecNode& node) const;  // returns the node itself
  const SpecNode& array(const SpecNode& node, std::string_view of_what) const;
  const std::string& string(const SpecNode& node, std::string_view what = "a string") const;
  bool boolean(const SpecNode& node) const;
  double number(const SpecNode& node, bool is_float) const;  // within f32, or a whole i32
  double element(const SpecNode& node, DType dtype) const;   // what a tensor's element can hold

  // The member of an object that must be there.
  const SpecNode& required(const SpecNode& node, std::string_view key, std::string_view what) const;
  std::string optional_string(const SpecNode& node, std::string_view key) const;

  // Refuses a key that is not among `allowed`; `what` names the object: "a param".
  void check_keys(const SpecNode& node, const std::vector<std::string>& allowed,
                  std::string_view what) const;
  // Refuses a word that is not among `allowed`; `what` names it: "a param's type".
  std::string word(const SpecNode& node, const std::vector<std::string>& allowed,
                   std::string_view what) const;
  // Refuses what cannot be a name in C++ or means something in a hook. `at` locates the error.
  void check_name(const SpecNode& at, std::string_view name, std::string_view what) const;

 private:
  std::string file_;
};

}  // namespace heddle
