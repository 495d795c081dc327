// heddle compile: a variant's GPU kernels for any architecture, without a GPU. Always compiles, so
// that the time is a compile's; the cache is neither asked nor filled.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/launch_set.h"
#include "runtime/nvrtc.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

// What to compile, resolved and checked.
constexpr std::string_view kTransformedKeys = "transformed_keys";

struct Job {
  AttentionConfig config;
  const Variant& variant;
  std::vector<double> values;
  std::vector<Pipeline> pipelines;
  std::vector<std::string> archs;
};

void show(const Job& job) {
  for (const std::string& arch : job.archs) {
    for (const Pipeline pipeline : job.pipelines) {
      const TileConfig tile = tile_candidates(pipeline, job.config, limits_of(arch), has_tile_hooks(job.variant))[0];
      const Unit unit = render_gpu_unit(pipeline, job.variant, job.values, job.config, tile);
      fmt::print("// ---- {} for {}: {}\n{}\n", name_of(pipeline), arch, unit.path, unit.text);
    }
    if (!transforms_keys(job.variant, job.config)) continue;
    const Unit unit = render_transformed_keys_unit(job.variant, job.values, job.config);
    fmt::print("// ---- {} for {}: {}\n{}\n", kTransformedKeys, arch, unit.path, unit.text);
  }
}

nlohmann::ordered_json figures_of(std::string_view kernel, const std::string& arch, const KernelBuild& build) {
  const Artifact& artifact = *build.result.artifact;
  return {{"kernel", kernel},
          {"arch", arch},
          {"ms", artifact.compile_ms + build.ms_in_vain},
          {"ms_in_vain", build.ms_in_vain},
          {"registers", artifact.registers},
          {"shared_bytes", artifact.shared_bytes + build.tile.smem_bytes},
          {"spill_bytes", artifact.spill_bytes}};
}

nlohmann::ordered_json compile_all(const Job& job) {
  NvrtcCompiler compiler;
  KernelCache cache({.disk = false});  // so that the time is a compile's
  const bool transforms = transforms_keys(job.variant, job.config);
  Progress progress(int(job.archs.size() * (job.pipelines.size() + (transforms ? 1 : 0))));
  fmt::print("{} with NVRTC {}.{}\n{:<18}{:<10}{:>8}{:>11}{:>15}{:>13}\n", job.config.variant,
             compiler.version() / 1000, compiler.version() % 1000 / 10, "kernel", "arch", "ms",
             "registers", "shared bytes", "spill bytes");
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  const auto compile_one = [&](std::string_view kernel, const std::string& arch, const auto& build) {
    progress.step(fmt::format("{} for {}", kernel, arch));
    const nlohmann::ordered_json& row = figures.emplace_back(figures_of(kernel, arch, build()));
    progress.clear();
    fmt::print("{:<18}{:<10}{:>8.0f}{:>11}{:>15}{:>13}\n", kernel, arch, row["ms"].get<double>(),
               row["registers"].get<int>(), row["shared_bytes"].get<int>(), row["spill_bytes"].get<int>());
  };
  for (const std::string& arch : job.archs) {
    for (const Pipeline pipeline : job.pipelines)
      compile_one(name_of(pipeline), arch, [&] {
        return build_kernel(cache, compiler, pipeline, job.variant, job.values, job.config, arch, limits_of(arch));
      });
    if (transforms)
      compile_one(kTransformedKeys, arch,
                  [&] { return build_transformed_keys(cache, compiler, job.variant, job.values, job.config, arch); });
  }
  return figures;
}

}  // namespace

int compile(const Arguments& arguments) {
  std::string variant = "softmax", heads = "32,8,128", dtype = "bf16", json;
  std::vector<std::string> archs = {"sm_90a"}, params;
  int page = 16, max_qo_len = 0, max_requests = 0;
  bool show_units = false;
  Options options("compile", "Compiles a variant's kernels for GPU architectures, without a GPU.");
  options.text(variant, "--variant", "a registered name, or a spec file");
  options.texts(archs, "--arch", "one or more of sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120");
  options.text(heads, "--heads", kHeadsHelp);
  options.number(page, "--page", "keys of a page; 0: ragged");
  options.number(max_qo_len, "--max-qo-len", "most query rows of a request; 0: any. 1 is decode only");
  options.number(max_requests, "--max-requests", "most requests of a batch; 0: any. Few get a decode tile of their own");
  options.text(dtype, "--dtype", "bf16 or f16");
  options.texts(params, "--param", "name=value, for constant params");
  options.flag(show_units, "--show", "print the rendered units instead");
  options.text(json, "--json", "write the figures to this file");
  if (!options.parse(arguments)) return 0;

  Engine engine({.device = DeviceKind::cpu});
  const Heads shape = parse_heads(heads);
  const AttentionConfig config{.variant = resolve_variant(engine, variant),
                               .num_qo_heads = shape.num_qo_heads,
                               .num_kv_heads = shape.num_kv_heads,
                               .head_dim = shape.head_dim,
                               .head_dim_vo = shape.head_dim_vo,
                               .q_dtype = parse_dtype(dtype),
                               .kv_dtype = parse_dtype(dtype),
                               .page_size = page,
                               .max_qo_len = max_qo_len,
                               .max_requests = max_requests,
                               .constants = parse_params(params)};
  check_config(config);
  for (const std::string& arch : archs) limits_of(arch);
  const Variant& spec = engine.variants().at(config.variant);
  const Job job{config, spec, spec.resolve(config.constants), launch_set(config), archs};
  if (show_units) {
    show(job);
  } else {
    write_json(json, compile_all(job));
  }
  return 0;
}

}  // namespace heddle::tools
