#include "engine/kernel_source.h"

#include <algorithm>

#include "engine/hook_source.h"
#include "engine/launch_set.h"
#include "engine/wgmma_source.h"

namespace heddle {
namespace {

std::string describe(const AttentionConfig& config) {
  return fmt::format("{}, head_dim {}{}, group {}, {}", name_of(config.kv_dtype), config.head_dim,
                     config.vo_dim() != config.head_dim ? fmt::format(", head_dim_vo {}", config.vo_dim()) : "",
                     config.num_qo_heads / config.num_kv_heads,
                     config.page_size ? fmt::format("page_size {}", config.page_size) : "ragged");
}

std::string spec_text(const Variant& variant, const AttentionConfig& config, const TileConfig& t) {
  return fmt::format(
      "struct Spec {{\n"
      "  static constexpr DType kType = DType::{};\n"
      "  static constexpr int kHeadDim = {}, kHeadDimVo = {}, kGroup = {}, kPageSize = {};\n"
      "  static constexpr int kBlockColumns = {}, kBoxRows = {}, kQBoxTokens = {};\n"
      "  static constexpr bool kSharesPrefixes = {}, kRowsGiven = {}, kTransformedKeys = {}, kSideBySide = {};\n"
      "  static constexpr TileConfig kTile = {{.rows = {}, .kv = {}, .warps = {}, .stages = {}, .ctas_per_sm = {}, "
      ".smem_bytes = {}, .q_buffers = {}, .reads_q_again = {}, .heads_abreast = {}}};\n"
      "{}"
      "}};\n",
      name_of(config.kv_dtype), config.head_dim, config.vo_dim(), config.num_qo_heads / config.num_kv_heads, config.page_size,
      block_columns(head_dims(config)), box_rows(config, t), q_box_tokens(config, t), config.share_prefixes,
      variant.mask.rows_given, transforms_keys(variant, config), runs_side_by_side(config),
      t.rows, t.kv, t.warps, t.stages, t.ctas_per_sm, t.smem_bytes, t.q_buffers, t.reads_q_again, t.heads_abreast,
      t.q_buffers > 0 ? render_wgmma(config.kv_dtype, t.kv, tile_columns(config.vo_dim())) : "");
}

// A skeleton's file and class.
struct Skeleton {
  const char* file;
  const char* name;
};
Skeleton skeleton_of(Pipeline pipeline, const TileConfig& tile) {
  if (pipeline == Pipeline::decode) return {"decode", "Decode"};
  return tile.q_buffers > 0 ? Skeleton{"append_sm90", "AppendSm90"} : Skeleton{"append", "Append"};
}

}  // namespace

std::string unit_prologue(std::string_view what, std::string_view skeleton) {
  return fmt::format(
      "// {}.\n"
      "#include \"templates/hook_math.cuh\"\n"
      "#include \"templates/tensor_view.h\"\n"
      "#include \"templates/{}.cuh\"\n\n"
      "namespace heddle::unit {{\n"
      "using Real = float;\n"
      "using namespace hook_math;\n\n",
      what, skeleton);
}

int kernel_arg_bytes(const Variant& variant) { return std::max(8, (arg_layout(variant).bytes + 7) / 8 * 8); }

Unit render_gpu_unit(Pipeline pipeline, const Variant& variant, const std::vector<double>& values,
                     const AttentionConfig& config, const TileConfig& tile) {
  const std::string kind(name_of(pipeline));
  const Skeleton skeleton = skeleton_of(pipeline, tile);
  Unit unit{"", fmt::format("{}_{}.cu", variant.name, kind), "heddle_" + kind};
  unit.text = unit_prologue(fmt::format("{} of variant {}: {}", kind, variant.name, describe(config)), skeleton.file);
  unit.text += render_hooks(reading_variant(variant, config), values, count_lines(unit.text) + 1, unit.path, tile.q_buffers > 0);
  unit.text += '\n' + spec_text(variant, config, tile);
  unit.text += fmt::format(
      "}}  // namespace heddle::unit\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(\n"
      "    const __grid_constant__ heddle::AttentionParams params, const __grid_constant__ heddle::ArgBytes<{}> args{}) {{\n"
      "  extern __shared__ __align__(1024) unsigned char smem[];\n"
      "{}"
      "  heddle::{}<heddle::unit::Spec, heddle::unit::Hooks> kernel(\n"
      "      params, hooks, {}*reinterpret_cast<heddle::{}Smem<heddle::unit::Spec>*>(smem));\n"
      "  kernel.run();\n"
      "}}\n",
      tile.warps * 32, tile.ctas_per_sm, unit.entry, kernel_arg_bytes(variant),
      tile.q_buffers > 0 ? ", const __grid_constant__ heddle::TensorMaps maps" : "", kMakeHooks, skeleton.name,
      tile.q_buffers > 0 ? "maps, " : "", skeleton.name);
  return unit;
}

Unit render_host_unit(const Variant& variant, const std::vector<double>& values, const std::string& entry) {
  Unit unit{"", fmt::format("{}_host.cc", variant.name), entry};
  unit.text = fmt::format(
      "// Variant {} for the CPU device (f32) and the reference (f64).\n"
      "#include \"templates/host_append_kv.h\"\n"
      "#include \"variants/reference_attention.h\"\n\n",
      variant.name);
  for (const char* real : {"float", "double"}) {
    unit.text += fmt::format(
        "namespace heddle::{}_{} {{\n"
        "using Real = {};\n"
        "#include \"templates/hook_math_host.h\"\n",
        entry, real, real);
    unit.text += render_hooks(variant, values, count_lines(unit.text) + 1, unit.path);
    unit.text += fmt::format("}}  // namespace heddle::{}_{}\n\n", entry, real);
  }
  unit.text += fmt::format(
      "extern \"C\" __attribute__((visibility(\"default\"))) void {0}_run(const heddle::AttentionParams* params, const "
      "heddle::VariantArgs* args, int pipeline) {{\n"
      "  const heddle::{0}_float::Hooks hooks(*args, {{params->num_kv_heads * params->group, params->num_kv_heads, "
      "params->group, params->head_dim, params->head_dim_vo}});\n"
      "  heddle::HostAttention<heddle::{0}_float::Hooks>(*params, hooks, static_cast<heddle::Pipeline>(pipeline)).run();\n"
      "}}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) void {0}_append(const heddle::AppendKvParams* params, const "
      "heddle::VariantArgs* args) {{\n"
      "  const heddle::{0}_float::Hooks hooks(*args, {{params->num_kv_heads * params->group, params->num_kv_heads, "
      "params->group, params->head_dim, params->head_dim_vo}});\n"
      "  heddle::HostAppendKv<heddle::{0}_float::Hooks>(*params, hooks).run();\n"
      "}}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) void {0}_reference(const heddle::ReferenceProblem* problem, "
      "const heddle::VariantArgs* args) {{\n"
      "  const heddle::{0}_double::Hooks hooks(*args, {{problem->num_qo_heads, problem->num_kv_heads, "
      "problem->num_kv_heads > 0 ? problem->num_qo_heads / problem->num_kv_heads : 0, problem->head_dim, problem->vo_dim()}});\n"
      "  heddle::reference_attention(hooks, *problem);\n"
      "}}\n",
      entry);
  return unit;
}

}  // namespace heddle
