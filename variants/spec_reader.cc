#include "variants/spec_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "variants/hook_reader.h"
#include "variants/nearest.h"
#include "variants/spec_fields.h"
#include "variants/spec_params.h"
#include "variants/spec_text.h"

namespace heddle {
namespace {

constexpr Hook kHooks[kNumHooks] = {
    Hook::query_transform, Hook::key_transform,    Hook::value_transform, Hook::logits_transform,
    Hook::logits_mask,     Hook::output_transform, Hook::initial_state};
constexpr DType kTensorTypes[] = {DType::f16, DType::bf16, DType::f32,
                                  DType::i32, DType::u8,   DType::u32};

template <typename Enum, std::size_t N>
std::vector<std::string> names_of(const Enum (&values)[N]) {
  std::vector<std::string> names;
  for (const Enum value : values) names.emplace_back(name_of(value));
  return names;
}

template <typename Enum, std::size_t N>
Enum value_of(std::string_view name, const Enum (&values)[N]) {
  return *std::find_if(std::begin(values), std::end(values),
                       [&](Enum value) { return name_of(value) == name; });
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view file)
      : root_(parse_spec_text(text, file)), fields_(file) {
    spec_.file = file;
    spec_.json = text;
  }

  Spec read() {
    fields_.object(root_);
    fields_.check_keys(
        root_, {"name", "doc", "params", "tensors", "hooks", "mask", "use_softmax", "compose"},
        "a spec");
    const SpecNode& name = fields_.required(root_, "name", "a C identifier such as \"soft_cap\"");
    spec_.name = fields_.string(name);
    fields_.check_name(name, spec_.name, "the variant");
    spec_.doc = fields_.optional_string(root_, "doc");
    // Params and tensors first: the mask and the hooks name them.
    for_members("params", [&](const std::string& key, const SpecNode& node) { param(key, node); });
    for_members("tensors",
                [&](const std::string& key, const SpecNode& node) { tensor(key, node); });
    if (const SpecNode* node = root_.find("use_softmax"))
      spec_.use_softmax = fields_.boolean(*node);
    mask();
    hooks();
    compose();
    return std::move(spec_);
  }

 private:
  template <typename Read>
  void for_members(std::string_view key, Read read) {
    const SpecNode* node = root_.find(key);
    if (node == nullptr) return;
    fields_.object(*node);
    for (std::size_t i = 0; i < node->keys.size(); ++i) read(node->keys[i], node->items[i]);
  }

  void param(const std::string& name, const SpecNode& node) {
    fields_.check_name(node, name, "the param");
    fields_.object(node);
    fields_.check_keys(node, {"type", "default", "min", "max", "constant", "doc"}, "a param");
    Param param;
    param.name = name;
    param.doc = fields_.optional_string(node, "doc");
    const SpecNode& type = fields_.required(node, "type", "\"f32\" or \"i32\"");
    param.is_float = fields_.word(type, {"f32", "i32"}, "a param's type") == "f32";
    if (const SpecNode* min = node.find("min")) param.min = fields_.number(*min, param.is_float);
    if (const SpecNode* max = node.find("max")) param.max = fields_.number(*max, param.is_float);
    if (param.min && param.max && *param.min > *param.max) {
      fields_.refuse(*node.find("max"), "at least " + fields_text(node, "min") + ", the min");
    }
    if (const SpecNode* constant = node.find("constant")) {
      param.constant = fields_.boolean(*constant);
    }
    param_default(param, node);
    spec_.params.push_back(std::move(param));
  }

  static std::string fields_text(const SpecNode& node, std::string_view key) {
    return node.find(key)->text;
  }

  void param_default(Param& param, const SpecNode& node) {
    const SpecNode* given = node.find("default");
    param.has_default = given != nullptr;
    if (given == nullptr) return;
    param.default_value = fields_.number(*given, param.is_float);
    if (param.min && param.default_value < *param.min) {
      fields_.refuse(*given, "at least " + fields_text(node, "min") + ", the param's min");
    }
    if (param.max && param.default_value > *param.max) {
      fields_.refuse(*given, "at most " + fields_text(node, "max") + ", the param's max");
    }
  }

  void tensor(const std::string& name, const SpecNode& node) {
    fields_.check_name(node, name, "the tensor");
    fields_.object(node);
    fields_.check_keys(node, {"dtype", "shape", "min", "max", "doc"}, "a tensor");
    TensorParam tensor;
    tensor.name = name;
    tensor.doc = fields_.optional_string(node, "doc");
    const SpecNode& dtype = fields_.required(node, "dtype", "an element type such as \"f32\"");
    tensor.dtype =
        value_of(fields_.word(dtype, names_of(kTensorTypes), "a tensor's dtype"), kTensorTypes);
    const std::string rank = fmt::format("an array of 1 to {} axes", kMaxTensorRank);
    const SpecNode& shape = fields_.required(node, "shape", rank);
    fields_.array(shape, rank);
    if (shape.items.empty() || shape.items.size() > std::size_t{kMaxTensorRank}) {
      fail(ErrorKind::invalid_spec, "{} has {} axes, but a tensor must have 1 to {}.",
           fields_.where(shape), shape.items.size(), kMaxTensorRank);
    }
    for (const SpecNode& axis : shape.items) tensor.shape.push_back(tensor_axis(axis));
    if (const SpecNode* min = node.find("min")) tensor.min = fields_.element(*min, tensor.dtype);
    if (const SpecNode* max = node.find("max")) tensor.max = fields_.element(*max, tensor.dtype);
    if (tensor.min && tensor.max && *tensor.min > *tensor.max) {
      fields_.refuse(*node.find("max"), "at least " + fields_text(node, "min") + ", the min");
    }
    spec_.tensors.push_back(std::move(tensor));
  }

  // A positive size as a number, or a text that parse_axis() knows.
  TensorAxis tensor_axis(const SpecNode& node) {
    const bool is_number = node.kind == SpecNode::Kind::number ||
                           node.text.find_first_not_of("0123456789") == std::string::npos;
    std::optional<TensorAxis> axis = parse_axis(node.text);
    if (!axis || (is_number && !axis->word.empty())) {
      fields_.refuse(node, is_number && !node.text.empty()
                               ? "a whole number from 1 to 2147483647"
                               : "a whole number, or a word as in \"2 * kv_len / 8 + 1\"");
    }
    if (axis->word.empty() || is_shape_word(axis->word)) return *axis;
    const auto at = std::find_if(spec_.params.begin(), spec_.params.end(),
                                 [&](const Param& param) { return param.name == axis->word; });
    if (at == spec_.params.end()) {
      std::vector<std::string> allowed = shape_word_names();
      for (const Param& param : spec_.params) {
        if (!param.is_float) allowed.push_back(param.name);
      }
      const bool is_alone = axis->word == node.text;
      fail(ErrorKind::invalid_spec, "{} is {}, {} is not the word of an axis; {}.",
           fields_.where(node), in_quotes(node.text),
           is_alone ? "which" : "where " + in_quotes(axis->word), offer(axis->word, allowed));
    }
    check_length_param(fields_, node, *at, "an axis");
    axis->param = static_cast<int>(at - spec_.params.begin());
    return *axis;
  }

  void mask() {
    const SpecNode* node = root_.find("mask");
    if (node == nullptr) return;
    fields_.object(*node);
    fields_.check_keys(*node, {"causal", "window_left", "window_right", "sink", "rows"}, "a mask");
    if (const SpecNode* causal = node->find("causal")) spec_.mask.causal = fields_.boolean(*causal);
    bound(*node, "window_left", spec_.mask.window_left);
    bound(*node, "window_right", spec_.mask.window_right);
    bound(*node, "sink", spec_.mask.sink);
    if (const SpecNode* rows = node->find("rows")) {
      spec_.mask.rows_given = fields_.word(*rows, {"given"}, "a mask's rows") == "given";
    }
    const SpecNode* sink = node->find("sink");
    if (sink && spec_.mask.window_left.empty() && spec_.mask.window_right.empty()) {
      fail(ErrorKind::invalid_spec,
           "{} is {}, but the mask has no window that a sink could escape; add window_left or "
           "window_right.",
           fields_.where(*sink), shown(*sink));
    }
  }

  void bound(const SpecNode& mask, std::string_view key, std::vector<Bound>& bounds) {
    const SpecNode* node = mask.find(key);
    if (node == nullptr) return;
    bounds.push_back(read_bound(fields_, *node, spec_.params, "a bound"));
  }

  void hooks() {
    const SpecNode* node = root_.find("hooks");
    if (node == nullptr) return;
    fields_.object(*node);
    fields_.check_keys(*node, names_of(kHooks), "the hooks");
    for (std::size_t i = 0; i < node->keys.size(); ++i) {
      const Hook hook = value_of(node->keys[i], kHooks);
      spec_.hooks[hook] = read_hook(fields_, hook, node->items[i], spec_);
      if (hook == Hook::initial_state && spec_.use_softmax == std::optional(false)) {
        fail(ErrorKind::invalid_spec,
             "{} stands beside \"use_softmax\": false, but it is a term of the softmax; leave one "
             "of "
             "the two out.",
             fields_.where(node->items[i]));
      }
    }
  }

  void compose() {
    const SpecNode* node = root_.find("compose");
    spec_.where = fields_.where(node == nullptr ? root_ : *node);
    if (node == nullptr) return;
    fields_.array(*node, "an array of variant names");
    if (node->items.empty()) fields_.refuse(*node, "an array that names at least one variant");
    for (const SpecNode& item : node->items) {
      const std::string& name = fields_.string(item, "the name of a variant");
      for (const ComposedName& other : spec_.compose) {
        if (other.name == name) {
          fail(ErrorKind::invalid_spec, "{} names {} a second time; each may be composed once.",
               fields_.where(item), in_quotes(name));
        }
      }
      spec_.compose.push_back({name, fields_.where(item)});
    }
  }

  SpecNode root_;
  SpecFields fields_;
  Spec spec_;
};

}  // namespace

Spec read_spec(std::string_view text, std::string_view file) { return Reader(text, file).read(); }

std::string base_name(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace heddle
