#include "engine/merge_source.h"

#include <algorithm>
#include <bit>

#include "engine/host_kernel.h"

namespace heddle {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 8;  // of a lane, as in templates/merge_states.cuh

}  // namespace

Unit render_merge_states_unit(const MergeConfig& c) {
  Unit unit{"", "merge_states.cu", "heddle_merge_states"};
  unit.text = fmt::format(
      "// merge_states: {} to {}, head_dim {}.\n"
      "#include \"templates/merge_states.cuh\"\n\n"
      "namespace heddle::unit {{\n"
      "struct Spec {{\n"
      "  static constexpr DType kStateType = DType::{}, kOutputType = DType::{};\n"
      "  static constexpr int kHeadDim = {};\n"
      "}};\n"
      "}}  // namespace heddle::unit\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ heddle::MergeStatesParams params) {{\n"
      "  heddle::MergeStates<heddle::unit::Spec>(params).run();\n"
      "}}\n",
      name_of(c.state_dtype), name_of(c.o_dtype), c.head_dim, name_of(c.state_dtype), name_of(c.o_dtype), c.head_dim, kThreads,
      unit.entry);
  return unit;
}

KernelBuild build_merge_states(KernelCache& cache, Compiler& compiler, const MergeConfig& config, const std::string& arch) {
  KernelBuild build{.tile = {.warps = kThreads / 32}, .unit = render_merge_states_unit(config)};
  build.result = cache.get(compiler, {.name = "merge_states", .unit = build.unit.text, .unit_path = build.unit.path,
                                      .headers = template_files(), .headers_digest = template_digest(), .arch = arch,
                                      .entry = build.unit.entry});
  return build;
}

std::int64_t merge_ctas(const MergeConfig& config, std::int64_t rows) {
  const auto lanes = std::min<std::int64_t>(32, std::bit_ceil(static_cast<unsigned>(config.head_dim / kColumns)));
  return (rows * lanes + kThreads - 1) / kThreads;
}

}  // namespace heddle
