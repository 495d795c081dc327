// heddle variants: list them, print one's spec, check a file as registering and using it would.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

std::string params_of(const Variant& variant) {
  std::string text;
  for (const Param& param : variant.params) {
    text += text.empty() ? "" : ", ";
    text +=
        param.has_default ? fmt::format("{} = {:g}", param.name, param.default_value) : param.name;
  }
  return text;
}

int list(const std::string& json) {
  const VariantRegistry registry;
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  for (const std::string& name : registry.names()) {
    const Variant& variant = registry.at(name);
    const std::string params = params_of(variant);
    fmt::print("{:<16} {}{}\n", name, variant.doc,
               params.empty() ? "" : fmt::format(" [{}]", params));
    figures.push_back({{"name", name}, {"doc", variant.doc}, {"params", params}});
  }
  write_json(json, figures);
  return 0;
}

int show(const std::string& name) {
  const VariantRegistry registry;
  const std::string& text = registry.at(name).json;
  fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
  return 0;
}

// Validates the spec, then renders and compiles its unit for the CPU device, which needs no GPU.
int check(const std::string& file) {
  Engine engine({.device = DeviceKind::cpu});
  const Variant variant = Variant::from_file(file, engine.variants());
  engine.register_variant(variant);
  ParamValues constants;
  for (const Param& param : variant.params) {
    if (param.constant && !param.has_default) constants[param.name] = param.min.value_or(1);
  }
  engine.attention({.variant = variant.name,
                    .num_qo_heads = 2,
                    .num_kv_heads = 1,
                    .head_dim = 64,
                    .constants = constants});
  const std::string params = params_of(variant);
  fmt::print("{} is a good spec: {}{}{}\n", file, variant.name, params.empty() ? "" : ", ", params);
  return 0;
}

}  // namespace

int variants(const Arguments& arguments) {
  std::string action, subject, json;
  Options options("variants",
                  "Lists the built-in variants, shows the JSON of one, or checks a spec file.");
  options.text(action, "action", "list, show NAME or check FILE");
  options.text(subject, "subject", "NAME or FILE");
  options.text(json, "--json", "list: write the names to this file");
  if (!options.parse(arguments)) return 0;
  if (action == "list" || action.empty()) return list(json);
  if (action != "show" && action != "check") {
    fail(ErrorKind::invalid_argument,
         "heddle variants cannot `{}`; it can list, show NAME and check FILE.", action);
  }
  if (subject.empty()) {
    fail(ErrorKind::invalid_argument, "heddle variants {} needs a {}.", action,
         action == "show" ? "name" : "file");
  }
  return action == "show" ? show(subject) : check(subject);
}

}  // namespace heddle::tools
