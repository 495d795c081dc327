#include "engine/hook_source.h"
#include "engine/kernel_source.h"

namespace heddle {
namespace {

// A kernel that changes rows of K or V from memory to memory: its skeleton, and what it is called with.
struct RowKernel {
  const char* what;  // for the first line
  const char* name;  // of its entry and files
  const char* skeleton;
  const char* params;
  int arg_bytes;
  const char* launch_bounds;
};

static_assert(kRowKernelThreads == 128, "as the launch bounds say");

Unit render_row_unit(const RowKernel& kernel, const Variant& hooks, const std::vector<double>& values,
                     const AttentionConfig& config) {
  const int group = config.num_qo_heads / config.num_kv_heads;
  Unit unit{"", fmt::format("{}_{}.cu", hooks.name, kernel.name), fmt::format("heddle_{}", kernel.name)};
  unit.text = unit_prologue(
      fmt::format("{} of {} variant: {}, head_dim {} and {}, group {}, {}", kernel.what, hooks.name, name_of(config.kv_dtype),
                  config.head_dim, config.vo_dim(), group,
                  config.page_size ? fmt::format("page_size {}", config.page_size) : "ragged"),
      kernel.name);
  unit.text += render_hooks(hooks, values, count_lines(unit.text) + 1, unit.path);
  unit.text += fmt::format(
      "\nstruct Spec {{\n"
      "  static constexpr DType kType = DType::{};\n"
      "  static constexpr int kHeadDim = {}, kHeadDimVo = {}, kGroup = {}, kPageSize = {};\n"
      "}};\n"
      "}}  // namespace heddle::unit\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(\n"
      "    const __grid_constant__ heddle::{} params, const __grid_constant__ heddle::ArgBytes<{}> args) {{\n"
      "{}"
      "  heddle::{}<heddle::unit::Spec, heddle::unit::Hooks>(params, hooks).run();\n"
      "}}\n",
      name_of(config.kv_dtype), config.head_dim, config.vo_dim(), group, config.page_size, kernel.launch_bounds, unit.entry,
      kernel.params, kernel.arg_bytes, kMakeHooks, kernel.skeleton);
  return unit;
}

}  // namespace

std::string_view name_of(AppendKv mode) {
  switch (mode) {
    case AppendKv::none: return "none";
    case AppendKv::copy: return "copy";
    case AppendKv::transform: return "transform";
  }
  return "?";
}

// Params and tensors stay: all kernels of an Attention take the same arguments.
Variant reading_variant(const Variant& variant, const AttentionConfig& config) {
  Variant reading = variant;
  if (config.append_kv != AppendKv::transform) return reading;
  for (Component& part : reading.components)
    for (Hook hook : {Hook::key_transform, Hook::value_transform}) part.hooks.erase(hook);
  return reading;
}

Unit render_append_kv_unit(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config) {
  // A copy is the same kernel for all variants.
  const bool transforms = config.append_kv == AppendKv::transform;
  const Variant hooks = transforms ? variant : Variant{.name = "any"};
  const std::string what = fmt::format("append_kv ({})", name_of(config.append_kv));
  return render_row_unit({what.c_str(), "append_kv", "AppendKv", "AppendKvParams", kernel_arg_bytes(hooks), "128"}, hooks,
                         values, config);
}

Unit render_transformed_keys_unit(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config) {
  // Three CTAs an SM or more: left to itself the compiler aims at more and spills.
  return render_row_unit({"Keys transformed ahead of append", "transformed_keys", "TransformedKeysPass", "AttentionParams",
                          kernel_arg_bytes(variant), "128, 3"},
                         variant, values, config);
}

}  // namespace heddle
