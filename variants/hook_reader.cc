#include "variants/hook_reader.h"

#include <cmath>

#include "variants/hook_code.h"
#include "variants/nearest.h"
#include "variants/spec_params.h"

namespace heddle {
namespace {

class HookReader {
 public:
  HookReader(const SpecFields& fields, const Spec& own) : fields_(fields), own_(own) {}

  HookCode read(Hook hook, const SpecNode& node) const {
    HookCode out;
    const SpecNode* code = &node;
    if (node.kind == SpecNode::Kind::object) {
      fields_.check_keys(node, {"code", "pair", "rotary_dim", "rms_norm", "keys", "max_distance"}, "a hook");
      code = &fields_.required(node, "code", "the body of a function");
      if (const SpecNode* pair = node.find("pair")) out.pair = rotary_pair(hook, *pair);
      if (const SpecNode* width = node.find("rotary_dim")) out.rotary_dim = rotary_dim(out, *width);
      if (const SpecNode* norm = node.find("rms_norm")) out.rms_norm = rms_norm(hook, *norm);
      if (const SpecNode* keys = node.find("keys")) out.new_keys = new_keys(hook, *keys);
      if (const SpecNode* most = node.find("max_distance")) out.max_distance = max_distance(hook, *most);
    }
    out.code =
        fields_.string(*code, code == &node ? "the code as a string or an object with \"code\""
                                            : "the code as a string");
    out.line = code->line;
    check_hook_code(fields_.where(*code), out.code,
                    {hook, out.pair, names_in(own_.params), names_in(own_.tensors)});
    return out;
  }

 private:
  void check_row_transform(Hook hook, const SpecNode& node, std::string_view sees) const {
    if (hook == Hook::query_transform || hook == Hook::key_transform ||
        hook == Hook::value_transform) {
      return;
    }
    fail(ErrorKind::invalid_spec,
         "{} is {}, but only query_transform, key_transform and value_transform see {}.",
         fields_.where(node), shown(node), sees);
  }

  std::string rotary_dim(const HookCode& hook, const SpecNode& node) const {
    if (hook.pair == RotaryPair::none) {
      fail(ErrorKind::invalid_spec,
           "{} is {}, but it says how many columns have a pair; ask for one, or leave it out.",
           fields_.where(node), shown(node));
    }
    return compiled_in(node, false, 0, "an even whole number from 0");
  }

  std::string rms_norm(Hook hook, const SpecNode& node) const {
    check_row_transform(hook, node, "a whole row");
    return compiled_in(node, true, 0, "a number from 0, the epsilon");
  }

  bool new_keys(Hook hook, const SpecNode& node) const {
    if (hook != Hook::logits_mask)
      fail(ErrorKind::invalid_spec, "{} is {}, but only logits_mask can be asked of some keys alone.",
           fields_.where(node), shown(node));
    return fields_.word(node, {"all", "new"}, "a choice of keys") == "new";
  }

  // A number, or the name of an i32 param.
  std::string max_distance(Hook hook, const SpecNode& node) const {
    if (hook != Hook::logits_transform)
      fail(ErrorKind::invalid_spec, "{} is {}, but only logits_transform can be held to a distance.", fields_.where(node),
           shown(node));
    const Bound most = read_bound(fields_, node, own_.params, "a max_distance");
    return most.param < 0 ? fmt::format("{}", most.literal) : own_.params[static_cast<std::size_t>(most.param)].name;
  }

  // A number, or the name of a constant param with a range above `least`, since kernels are compiled
  // with it.
  std::string compiled_in(const SpecNode& node, bool is_float, double least, std::string_view what) const {
    if (node.kind == SpecNode::Kind::number) {
      const bool is_even = is_float || std::fmod(node.number, 2) == 0;
      if (fields_.number(node, is_float) < least || !is_even) fields_.refuse(node, what);
      return node.text;
    }
    const std::string& name = fields_.string(node, fmt::format("{} or the name of a constant param", what));
    const Param& param = own_.params[static_cast<std::size_t>(param_index(fields_, node, name, own_.params))];
    if (param.is_float != is_float || !param.constant || !param.min || *param.min < least) {
      fail(ErrorKind::invalid_spec,
           "{} is {}, but the param must be a constant {} with a min of {} or more.",
           fields_.where(node), in_quotes(param.name), is_float ? "f32" : "i32", least);
    }
    return param.name;
  }

  RotaryPair rotary_pair(Hook hook, const SpecNode& node) const {
    check_row_transform(hook, node, "a pair");
    const std::string word = fields_.word(node, {"half_split", "interleaved"}, "a rotary pair");
    return word == "half_split" ? RotaryPair::half_split : RotaryPair::interleaved;
  }

  const SpecFields& fields_;
  const Spec& own_;
};

}  // namespace

HookCode read_hook(const SpecFields& fields, Hook hook, const SpecNode& node, const Spec& own) {
  return HookReader(fields, own).read(hook, node);
}

}  // namespace heddle
