#include <utility>

#include "engine/host_kernel.h"
#include "engine/launch_set.h"

namespace heddle {
namespace {

KernelBuild build_row_kernel(KernelCache& cache, Compiler& compiler, const std::string& name, Unit unit,
                             const std::string& arch) {
  KernelBuild build{.tile = {.warps = kRowKernelThreads / 32}, .unit = std::move(unit)};
  build.result = cache.get(compiler, {.name = name, .unit = build.unit.text, .unit_path = build.unit.path,
                                      .headers = template_files(), .headers_digest = template_digest(), .arch = arch,
                                      .entry = build.unit.entry});
  return build;
}

}  // namespace

KernelBuild build_kernel(KernelCache& cache, Compiler& compiler, Pipeline pipeline, const Variant& variant,
                         const std::vector<double>& values, const AttentionConfig& config, const std::string& arch,
                         DeviceLimits limits) {
  check_rows(variant, values, config);
  limits.wgmma = limits.wgmma && !config.portable;
  KernelBuild build;
  for (const TileConfig& tile : tile_candidates(pipeline, config, limits, has_tile_hooks(variant))) {
    if (build.result.artifact) build.ms_in_vain += build.result.artifact->compile_ms;
    build.tile = tile;
    build.unit = render_gpu_unit(pipeline, variant, values, config, tile);
    const CompileRequest request{.name = fmt::format("{} of {}", name_of(pipeline), variant.name),
                                 .unit = build.unit.text, .unit_path = build.unit.path, .headers = template_files(),
                                 .headers_digest = template_digest(), .arch = arch, .entry = build.unit.entry};
    build.result = cache.get(compiler, request);
    if (build.result.artifact->spill_bytes == 0) break;
  }
  return build;
}

KernelBuild build_append_kv(KernelCache& cache, Compiler& compiler, const Variant& variant,
                            const std::vector<double>& values, const AttentionConfig& config, const std::string& arch) {
  check_rows(variant, values, config);
  check_append_kv(variant, config);
  return build_row_kernel(cache, compiler, fmt::format("append_kv of {}", variant.name),
                          render_append_kv_unit(variant, values, config), arch);
}

KernelBuild build_transformed_keys(KernelCache& cache, Compiler& compiler, const Variant& variant,
                                   const std::vector<double>& values, const AttentionConfig& config,
                                   const std::string& arch) {
  check_rows(variant, values, config);
  return build_row_kernel(cache, compiler, fmt::format("transformed keys of {}", variant.name),
                          render_transformed_keys_unit(variant, values, config), arch);
}

}  // namespace heddle
