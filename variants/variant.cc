#include "variants/variant.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "engine/error.h"
#include "variants/compose.h"
#include "variants/nearest.h"
#include "variants/spec_reader.h"
#include "variants/spec_text.h"

namespace heddle {

namespace embedded {
std::span<const EmbeddedFile> builtin_specs();
}

namespace {

std::vector<std::string> names_of(const std::vector<Param>& params) {
  std::vector<std::string> names;
  for (const Param& param : params) names.push_back(param.name);
  return names;
}

// The params that `name` would mean if the composition had not renamed them.
std::vector<std::string> qualified(const std::vector<Param>& params, std::string_view name) {
  std::vector<std::string> found;
  for (const Param& param : params) {
    const std::size_t dot = param.name.find('.');
    if (dot != std::string::npos && param.name.substr(dot + 1) == name) found.push_back(param.name);
  }
  return found;
}

[[noreturn]] void unknown_param(const Variant& variant, const std::string& name) {
  const std::vector<std::string> full = qualified(variant.params, name);
  if (!full.empty()) {
    fail(ErrorKind::invalid_spec, "The variant {} has more than one param {}; say which: {}.",
         variant.name, name, comma_list(full));
  }
  fail(ErrorKind::invalid_spec, "The variant {} has no param {}; {}.", variant.name,
       in_quotes(name), offer(name, names_of(variant.params)));
}

void check_value(const Variant& variant, const Param& param, double value) {
  const auto refuse = [&](const std::string& allowed) {
    fail(ErrorKind::invalid_spec, "The param {} of the variant {} is {}, but it must be {}.",
         param.name, variant.name, value, allowed);
  };
  if (param.is_float && !(std::abs(value) <= FLT_MAX)) {
    refuse("a finite f32, at most 3.4028235e+38 in size");
  }
  if (!param.is_float &&
      !(value == std::floor(value) && value >= -2147483648.0 && value <= 2147483647.0)) {
    refuse("a whole number from -2147483648 to 2147483647");
  }
  if (param.min && value < *param.min) refuse(fmt::format("at least {}", *param.min));
  if (param.max && value > *param.max) refuse(fmt::format("at most {}", *param.max));
}

// A number, or one of the component's own params.
double value_of(const Component& component, const std::string& text,
                const std::vector<double>& values) {
  const auto param = component.params.find(text);
  if (param != component.params.end()) return values[static_cast<std::size_t>(param->second)];
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);  // the reader has checked it
  return number;
}

std::int32_t smallest(const std::vector<Bound>& bounds, const std::vector<double>& values,
                      std::int32_t none) {
  std::int32_t least = none;
  for (const Bound& bound : bounds) {
    const std::int32_t value =
        bound.param < 0 ? bound.literal
                        : static_cast<std::int32_t>(values[static_cast<std::size_t>(bound.param)]);
    least = &bound == &bounds[0] ? value : std::min(least, value);
  }
  return least;
}

}  // namespace

std::string_view name_of(Hook hook) {
  switch (hook) {
    case Hook::query_transform:
      return "query_transform";
    case Hook::key_transform:
      return "key_transform";
    case Hook::value_transform:
      return "value_transform";
    case Hook::logits_transform:
      return "logits_transform";
    case Hook::logits_mask:
      return "logits_mask";
    case Hook::output_transform:
      return "output_transform";
    case Hook::initial_state:
      return "initial_state";
  }
  return "?";
}

Variant Variant::from_json(std::string_view text, std::string_view file,
                           const VariantRegistry& known) {
  return compose(read_spec(text, file), known);
}

Variant Variant::from_file(const std::string& path, const VariantRegistry& known) {
  std::ifstream in(path, std::ios::binary);
  const int open_error = errno;
  if (!in) {
    fail(ErrorKind::io, "The spec {} cannot be opened: {}.", path,
         std::generic_category().message(open_error));
  }
  // One byte more than allowed is enough to know; a device or a pipe may never end.
  std::string text(kMaxSpecBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof())) {
    fail(ErrorKind::io, "The spec {} cannot be read; it must be a file that holds JSON.", path);
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  return from_json(text, path, known);
}

bool Variant::masks_new_keys_only() const {
  for (const Component& part : components) {
    const auto mask = part.hooks.find(Hook::logits_mask);
    if (mask != part.hooks.end() && !mask->second.new_keys) return false;
  }
  return has(Hook::logits_mask);
}

bool Variant::has(Hook hook) const {
  return std::any_of(components.begin(), components.end(),
                     [&](const Component& component) { return component.hooks.count(hook) > 0; });
}

RotaryPair Variant::pair(Hook hook) const {
  for (const Component& component : components) {
    const auto at = component.hooks.find(hook);
    if (at != component.hooks.end() && at->second.pair != RotaryPair::none) return at->second.pair;
  }
  return RotaryPair::none;
}

RowInput Variant::row_input(Hook hook, const std::vector<double>& values) const {
  RowInput input{.pair = static_cast<int>(pair(hook))};
  const Component* first = nullptr;
  for (const Component& component : components) {
    const auto at = component.hooks.find(hook);
    if (at == component.hooks.end()) continue;
    const HookCode& code = at->second;
    if (!code.rms_norm.empty()) {
      input.rms_eps = static_cast<float>(value_of(component, code.rms_norm, values));
    }
    if (code.pair == RotaryPair::none) continue;
    const int width =
        code.rotary_dim.empty() ? 0 : static_cast<int>(value_of(component, code.rotary_dim, values));
    if (first != nullptr && width != input.rotary_dim) {
      fail(ErrorKind::invalid_spec,
           "{}: the {} of {} has rotary_dim {} and that of {} has {}; a chain may use one.", name,
           name_of(hook), first->name, input.rotary_dim, component.name, width);
    }
    input.rotary_dim = width;
    first = &component;
  }
  return input;
}

std::vector<double> Variant::resolve(const ParamValues& values) const {
  const std::vector<std::string> names = names_of(params);
  for (const auto& [name, value] : values) {
    if (std::find(names.begin(), names.end(), name) == names.end()) unknown_param(*this, name);
  }
  std::vector<double> resolved;
  for (const Param& param : params) {
    const auto given = values.find(param.name);
    if (given == values.end() && !param.has_default) {
      fail(ErrorKind::invalid_spec,
           "The param {} of the variant {} has no default; give it a value.", param.name,
           this->name);
    }
    if (given != values.end()) check_value(*this, param, given->second);
    resolved.push_back(given == values.end() ? param.default_value : given->second);
  }
  return resolved;
}

MaskBounds Variant::bounds(const std::vector<double>& values) const {
  assert(values.size() == params.size());
  return {mask.causal ? 1 : 0, smallest(mask.window_left, values, kUnbounded),
          smallest(mask.window_right, values, kUnbounded), smallest(mask.sink, values, 0)};
}

VariantRegistry::VariantRegistry() { add_specs(embedded::builtin_specs(), *this); }

void VariantRegistry::add(Variant variant) {
  std::string name = variant.name;
  variants_.insert_or_assign(std::move(name), std::move(variant));
}

const Variant& VariantRegistry::at(std::string_view name) const {
  const auto found = variants_.find(name);
  if (found == variants_.end()) {
    fail(ErrorKind::invalid_spec, "There is no variant {}; {}.", in_quotes(name),
         offer(name, names()));
  }
  return found->second;
}

std::vector<std::string> VariantRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, variant] : variants_) names.push_back(name);
  return names;
}

}  // namespace heddle
