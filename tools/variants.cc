// heddle variants: list them, print one's spec and which tiles pay for its mask, check a file as registering and using it would.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/logit_form.h"
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

// "causal, window_left = window", or nothing.
std::string declared_mask_of(const Variant& variant) {
  std::vector<std::string> parts;
  if (variant.mask.causal) parts.push_back("causal");
  const auto add = [&](std::string_view key, const std::vector<Bound>& bounds) {
    for (const Bound& bound : bounds)
      parts.push_back(fmt::format("{} = {}", key,
                                  bound.param < 0 ? std::to_string(bound.literal)
                                                  : variant.params[std::size_t(bound.param)].name));
  };
  add("window_left", variant.mask.window_left);
  add("window_right", variant.mask.window_right);
  add("sink", variant.mask.sink);
  if (variant.mask.rows_given) parts.push_back("rows = given");
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Which KV tiles pay for masking: what the skeletons do (templates/softmax.cuh) in a user's words.
std::string mask_code_of(const Variant& variant) {
  const std::string declared = declared_mask_of(variant);
  if (variant.masks_new_keys_only())
    return fmt::format("tiles that hold keys of the request's own new rows{}, and a last tile that the keys do not fill",
                       declared.empty() ? "" : fmt::format(", boundary tiles of the declared mask ({})", declared));
  if (variant.has(Hook::logits_mask))
    return fmt::format("every tile that the free mask can touch: {}; it runs for each logit",
                       declared.empty() ? "all of a request's"
                                        : fmt::format("those that the declared mask ({}) leaves", declared));
  if (declared.empty()) return "none, but for a last tile that the keys do not fill";
  return fmt::format("boundary tiles of the declared mask ({}), and a last tile that the keys do not fill; tiles that "
                     "it hides are skipped", declared);
}

// What is asked less often than of each logit: "logits_transform runs ...", or nothing.
std::string far_form_of(const Variant& variant) {
  if (!logit_form(variant, true).is_affine_far) return "";
  return "logits_transform runs once a row of tiles beyond max_distance (append on sm_90a), and for each logit of the others";
}

int show(const std::string& name, const std::string& json) {
  const VariantRegistry registry;
  const Variant& variant = registry.at(name);
  const std::string mask_code = mask_code_of(variant);
  fmt::print("{}{}\nmask code runs in: {}\n", variant.json, variant.json.ends_with('\n') ? "" : "\n", mask_code);
  nlohmann::ordered_json said = {{"spec", nlohmann::ordered_json::parse(variant.json)}, {"mask_code", mask_code}};
  if (const std::string far_form = far_form_of(variant); !far_form.empty()) {
    fmt::print("{}\n", far_form);
    said["far_form"] = far_form;
  }
  write_json(json, said);
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
                  "Lists the built-in variants, shows the JSON of one and where its mask costs, or checks a spec file.");
  options.text(action, "action", "list, show NAME or check FILE");
  options.text(subject, "subject", "NAME or FILE");
  options.text(json, "--json", "list: write the names to this file; show: the spec and what is said of it");
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
  return action == "show" ? show(subject, json) : check(subject);
}

}  // namespace heddle::tools
