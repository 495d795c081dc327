#include "engine/hook_source.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "engine/error.h"
#include "engine/logit_form.h"

namespace heddle {
namespace {

constexpr int kTensorArgBytes = 8 + 8 * kMaxTensorRank;

struct HookShape {
  const char* result;     // return type
  const char* arguments;  // parameters before the context
  const char* names;      // the same as call arguments
  const char* initial;    // value when the chain starts
};

HookShape shape_of(Hook hook) {
  switch (hook) {
    case Hook::query_transform:
    case Hook::key_transform:
    case Hook::value_transform: return {"Real", "Real x, [[maybe_unused]] Real pair, [[maybe_unused]] int dim", "x, pair, dim", "x"};
    case Hook::logits_transform: return {"Real", "Real logit", "logit", "logit"};
    case Hook::logits_mask: return {"bool", "[[maybe_unused]] Real logit", "logit", "true"};
    case Hook::output_transform: return {"Real", "Real x, [[maybe_unused]] int dim", "x, dim", "x"};
    case Hook::initial_state: return {"Real", "", "", ""};
  }
  return {};
}

constexpr Hook kAllHooks[] = {Hook::query_transform,  Hook::key_transform, Hook::value_transform,
                              Hook::logits_transform, Hook::logits_mask,   Hook::output_transform,
                              Hook::initial_state};

constexpr std::pair<Hook, const char*> kRowInputs[] = {{Hook::query_transform, "query_pair"},
                                                       {Hook::key_transform, "key_pair"},
                                                       {Hook::value_transform, "value_pair"}};

// Exact, and a float whatever its value.
std::string float_literal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%af", static_cast<float>(value));
  return text;
}

std::string element_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::i32: return "heddle::int32_t";
    case DType::u8: return "heddle::uint8_t";
    case DType::u32: return "heddle::uint32_t";
    case DType::bf16: return "heddle::Bf16Bits";
    case DType::f16: return "heddle::F16Bits";
  }
  return {};
}

class Renderer {
 public:
  Renderer(const Variant& variant, const std::vector<double>& values, int first_line,
           const std::string& unit_path, bool affine_beside_mask)
      : variant_(variant),
        values_(values),
        layout_(arg_layout(variant)),
        logit_form_(logit_form(variant, affine_beside_mask)),
        line_(first_line),
        path_(unit_path) {}

  std::string render() {
    for (std::size_t i = 0; i < variant_.components.size(); ++i) component(static_cast<int>(i));
    line("struct Hooks {");
    line(fmt::format("  static constexpr bool use_softmax = {};", variant_.use_softmax));
    for (Hook hook : kAllHooks)
      line(fmt::format("  static constexpr bool has_{} = {};", name_of(hook), variant_.has(hook)));
    line(fmt::format("  static constexpr bool masks_new_keys_only = {};", variant_.masks_new_keys_only()));
    line(fmt::format("  static constexpr bool logits_are_plain = {};", logits_are_plain()));
    line(fmt::format("  static constexpr bool transforms_by_four = {};", logit_form_.is_by_four));
    line(fmt::format("  static constexpr bool logits_are_capped = {};", logit_form_.is_capped));
    line(fmt::format("  static constexpr bool logits_are_affine = {}, keeps_logit_scale = {}, has_kv_distance = {};",
                     logit_form_.is_affine, logit_form_.keeps_scale, logit_form_.has_distance));
    line(fmt::format("  static constexpr bool has_far_form = {}, far_keeps_logit_scale = {}, far_has_kv_distance = {};",
                     logit_form_.is_affine_far, logit_form_.far_keeps_scale, logit_form_.far_has_distance));
    for (const auto& [hook, name] : kRowInputs) row_input(hook, name);
    for (std::size_t i = 0; i < variant_.components.size(); ++i) line(fmt::format("  Part{} part{};", i, i));
    constructor();
    if (logit_form_.is_affine_far) reach();
    for (Hook hook : kAllHooks)
      if (variant_.has(hook)) chain(hook);
    line("};");
    return text_;
  }

 private:
  // Whether the hooks on logits may be called for keys that are not there: they read no tensor, which such a
  // key would lead astray, and have no loop, which unused memory might keep going.
  bool logits_are_plain() const {
    for (const Component& part : variant_.components) {
      for (const auto& [hook, code] : part.hooks) {
        if (hook != Hook::logits_transform && hook != Hook::logits_mask) continue;
        if (!part.tensors.empty()) return false;
        for (const char* loop : {"for", "while", "goto"})
          if (code.code.find(loop) != std::string::npos) return false;
      }
    }
    return true;
  }

  void line(const std::string& text) {
    text_ += text + '\n';
    line_ += 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  // `shape`, or a template of it where a kernel may call the hook with another kind of logit, or of place.
  std::string signature(Hook hook, const HookShape& shape) const {
    const bool is_logits = hook == Hook::logits_transform;
    const bool affine = is_logits && (logit_form_.is_affine || logit_form_.is_affine_far);
    const bool by_four = is_logits && logit_form_.is_by_four;
    const bool is_template = affine || by_four;
    return fmt::format("  {}HEDDLE_HOOK {} {}({}{}const {}& context) const {{",
                       affine    ? "template <class Logits, class Context> "
                       : by_four ? "template <class Logits> "
                                 : "",
                       is_template ? "Logits" : shape.result, name_of(hook), is_template ? "Logits logit" : shape.arguments,
                       *shape.arguments ? ", " : "", affine ? "Context" : "heddle::HookContext");
  }

  // One spec's hooks under its own names for params and tensors.
  void component(int index) {
    const Component& part = variant_.components[index];
    line(fmt::format("struct Part{} {{  // {}", index, part.name));
    line("  struct Params {");
    for (const auto& [local, param] : part.params) param_field(local, param);
    line("  } params;");
    line("  struct Tensors {");
    for (const auto& [local, tensor] : part.tensors)
      line(fmt::format("    heddle::TensorView<{}, {}> {};", element_type(variant_.tensors[tensor].dtype),
                       variant_.tensors[tensor].shape.size(), local));
    line("  } tensors;");
    line("  heddle::HeadShape shape;");
    for (const auto& [hook, code] : part.hooks) snippet(part, hook, code);
    line("};");
  }

  void param_field(const std::string& local, int index) {
    const Param& param = variant_.params[index];
    if (!param.constant) {
      line(fmt::format("    {} {};", param.is_float ? "RealParam" : "int", local));
    } else if (param.is_float) {
      line(fmt::format("    static constexpr Real {} = {};", local, float_literal(values_[index])));
    } else {
      line(fmt::format("    static constexpr int {} = {};", local, static_cast<int>(values_[index])));
    }
  }

  void snippet(const Component& part, Hook hook, const HookCode& code) {
    const HookShape shape = shape_of(hook);
    line(signature(hook, shape));
    const bool of_keys = hook == Hook::key_transform || hook == Hook::value_transform;
    if (!code.max_distance.empty())
      line(fmt::format("    const heddle::HookContext held = heddle::held_within(context, {});", max_distance_of(code, "")));
    line(fmt::format("    HEDDLE_HOOK_WORDS({}, shape, {}key_position);", code.max_distance.empty() ? "context" : "held",
                     of_keys ? "moving_" : "heddle::"));
    text_ += fmt::format("#line {} \"{}:/hooks/{}\"\n", code.line, part.file, name_of(hook));
    text_ += code.code + '\n';
    line_ += 2 + count_lines(code.code);
    text_ += fmt::format("#line {} \"{}\"\n", line_ + 1, path_);
    ++line_;
    line("  }");
  }

  void constructor() {
    line("  template <int kBytes>");
    line("  HEDDLE_HOOK Hooks(const heddle::ArgBytes<kBytes>& args, const heddle::HeadShape& shape) {");
    line("    (void)args;");
    for (std::size_t i = 0; i < variant_.components.size(); ++i) {
      const Component& part = variant_.components[i];
      line(fmt::format("    part{}.shape = shape;", i));
      for (const auto& [local, index] : part.params)
        if (!variant_.params[index].constant)
          line(fmt::format("    part{}.params.{} = heddle::read_arg<{}>(args, {});", i, local,
                           variant_.params[index].is_float ? "float" : "int", layout_.param_offsets[index]));
      for (const auto& [local, index] : part.tensors)
        line(fmt::format("    part{0}.tensors.{1} = heddle::read_arg<decltype(part{0}.tensors.{1})>(args, {2});", i,
                         local, layout_.tensor_offsets[index]));
    }
    line("  }");
  }

  // The number, or the param of `part` ("part0.", or "" inside of it).
  static std::string max_distance_of(const HookCode& code, const std::string& part) {
    const bool is_number = std::isdigit(static_cast<unsigned char>(code.max_distance[0]));
    return is_number ? code.max_distance : fmt::format("{}params.{}", part, code.max_distance);
  }

  // The distance from which on keys are equally far for all parts.
  void reach() {
    line("  HEDDLE_HOOK int reach() const {");
    line("    int reach = 0;");
    for (std::size_t i = 0; i < variant_.components.size(); ++i) {
      const auto found = variant_.components[i].hooks.find(Hook::logits_transform);
      if (found == variant_.components[i].hooks.end() || found->second.max_distance.empty()) continue;
      line(fmt::format("    if ({0} > reach) reach = {0};", max_distance_of(found->second, fmt::format("part{}.", i))));
    }
    line("    return reach;");
    line("  }");
  }

  void row_input(Hook hook, const char* name) {
    const RowInput input = variant_.row_input(hook, values_);
    line(fmt::format("  static constexpr heddle::RowInput {} = {{{}, {}, {}}};", name, input.pair, input.rotary_dim,
                     float_literal(input.rms_eps)));
  }

  // The parts one after the other, left to right.
  void chain(Hook hook) {
    const HookShape shape = shape_of(hook);
    line(signature(hook, shape));
    if (hook == Hook::logits_mask) line("    bool kept = true;");
    int parts_with_pair = 0;  // that are still to come
    for (const Component& part : variant_.components) parts_with_pair += asks_for_pair(part, hook);
    for (std::size_t i = 0; i < variant_.components.size(); ++i) {
      const Component& part = variant_.components[i];
      if (!part.hooks.contains(hook)) continue;
      parts_with_pair -= asks_for_pair(part, hook);
      call(hook, shape, static_cast<int>(i), parts_with_pair > 0);
    }
    if (hook == Hook::logits_mask) line("    return kept;");
    if (hook != Hook::logits_mask && hook != Hook::initial_state) line(fmt::format("    return {};", shape.initial));
    line("  }");
  }

  // Without a branch: behind one a mask's loads would be waited for one by one. A mask of new keys is asked of the
  // first of them in place of an older key.
  void mask_call(int part, const std::string& call) {
    if (!variant_.components[part].hooks.at(Hook::logits_mask).new_keys) return line(fmt::format("    kept &= {};", call));
    line("    {");
    line("      const int first_new = context.kv_len - context.qo_len;");
    line("      const bool is_old = context.kv_pos < first_new;");
    line("      heddle::HookContext of_new = context;");
    line("      if (is_old) of_new.move_to_key(first_new);");
    line(fmt::format("      kept &= is_old | part{}.logits_mask(logit, of_new);", part));
    line("    }");
  }

  static bool asks_for_pair(const Component& part, Hook hook) {
    const auto found = part.hooks.find(hook);
    return found != part.hooks.end() && found->second.pair != RotaryPair::none;
  }

  // With `moves_pair` a later part wants the partner as this one leaves it.
  void call(Hook hook, const HookShape& shape, int part, bool moves_pair) {
    if (moves_pair) {
      const char* input = std::find_if(std::begin(kRowInputs), std::end(kRowInputs),
                                       [&](const auto& entry) { return entry.first == hook; })->second;
      line(fmt::format("    const Real x{0} = part{0}.{1}(x, pair, dim, context);", part, name_of(hook)));
      line(fmt::format("    pair = part{0}.{1}(pair, x, heddle::partner_of({2}, dim, part{0}.shape.{3}), context);", part,
                       name_of(hook), input, hook == Hook::value_transform ? "head_dim_vo" : "head_dim"));
      return line(fmt::format("    x = x{};", part));
    }
    const std::string call = fmt::format("part{}.{}({}{}context)", part, name_of(hook), shape.names,
                                         *shape.names ? ", " : "");
    if (hook == Hook::logits_mask) return mask_call(part, call);
    if (hook == Hook::initial_state) return line(fmt::format("    return {};", call));
    line(fmt::format("    {} = {};", shape.initial, call));
  }

  const Variant& variant_;
  const std::vector<double>& values_;
  const ArgLayout layout_;
  const LogitForm logit_form_;
  std::string text_;
  int line_;
  const std::string& path_;
};

}  // namespace

int count_lines(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

ArgLayout arg_layout(const Variant& variant) {
  ArgLayout layout;
  for (std::size_t i = 0; i < variant.tensors.size(); ++i) {
    layout.tensor_offsets.push_back(layout.bytes);
    layout.bytes += kTensorArgBytes;
  }
  for (const Param& param : variant.params) {
    layout.param_offsets.push_back(param.constant ? -1 : layout.bytes);
    if (!param.constant) layout.bytes += 4;
  }
  return layout;
}

std::string builtin_key(const Variant& variant, const std::vector<double>& values) {
  return render_hooks(variant, values, 1, "unit");
}

std::string render_hooks(const Variant& variant, const std::vector<double>& values, int first_line,
                         const std::string& unit_path, bool affine_beside_mask) {
  return Renderer(variant, values, first_line, unit_path, affine_beside_mask).render();
}

}  // namespace heddle
