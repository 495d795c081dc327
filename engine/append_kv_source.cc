#include "engine/hook_source.h"
#include "engine/kernel_source.h"

namespace heddle {

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
  Unit unit{"", fmt::format("{}_append_kv.cu", hooks.name), "heddle_append_kv"};
  unit.text = fmt::format(
      "// append_kv ({}) of {} variant: {}, head_dim {} and {}, group {}, {}.\n"
      "#include \"templates/hook_math.cuh\"\n"
      "#include \"templates/tensor_view.h\"\n"
      "#include \"templates/append_kv.cuh\"\n\n"
      "namespace heddle::unit {{\n"
      "using Real = float;\n"
      "using namespace hook_math;\n\n",
      name_of(config.append_kv), hooks.name, name_of(config.kv_dtype), config.head_dim, config.vo_dim(),
      config.num_qo_heads / config.num_kv_heads,
      config.page_size ? fmt::format("page_size {}", config.page_size) : "ragged");
  unit.text += render_hooks(hooks, values, count_lines(unit.text) + 1, unit.path);
  unit.text += fmt::format(
      "\nstruct Spec {{\n"
      "  static constexpr DType kType = DType::{};\n"
      "  static constexpr int kHeadDim = {}, kHeadDimVo = {}, kGroup = {}, kPageSize = {};\n"
      "}};\n"
      "}}  // namespace heddle::unit\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(\n"
      "    const __grid_constant__ heddle::AppendKvParams params, const __grid_constant__ heddle::ArgBytes<{}> args) {{\n"
      "  const heddle::unit::Hooks hooks(args, {{params.num_kv_heads * heddle::unit::Spec::kGroup, params.num_kv_heads, "
      "heddle::unit::Spec::kGroup, heddle::unit::Spec::kHeadDim, heddle::unit::Spec::kHeadDimVo}});\n"
      "  heddle::AppendKv<heddle::unit::Spec, heddle::unit::Hooks>(params, hooks).run();\n"
      "}}\n",
      name_of(config.kv_dtype), config.head_dim, config.vo_dim(), config.num_qo_heads / config.num_kv_heads, config.page_size,
      kAppendKvThreads, unit.entry, kernel_arg_bytes(hooks));
  return unit;
}

}  // namespace heddle
