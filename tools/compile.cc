// heddle compile: a variant's GPU kernels for any architecture, without a GPU. Always compiles, so
// that the time is a compile's; the cache is neither asked nor filled.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "runtime/nvrtc.h"
#include "tools/json.h"
#include "tools/kernel_job.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

int show(const std::vector<KernelJob>& jobs) {
  for (const KernelJob& job : jobs)
    fmt::print("// ---- {} for {}: {}\n{}\n", job.name, job.arch, job.unit.path, job.unit.text);
  return 0;
}

int compile_all(const std::vector<KernelJob>& jobs, const std::string& variant,
                const std::string& json) {
  NvrtcCompiler compiler;
  Progress progress(int(jobs.size()));
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  fmt::print("{} with NVRTC {}.{}\n{:<8}{:<10}{:>8}{:>11}{:>15}{:>13}{:>13}\n", variant,
             compiler.version() / 1000, compiler.version() % 1000 / 10, "kernel", "arch", "ms",
             "registers", "shared bytes", "spill bytes", "image bytes");
  for (const KernelJob& job : jobs) {
    progress.step(fmt::format("{} for {}", job.name, job.arch));
    const Artifact artifact = compiler.compile(job.request());
    progress.clear();
    const int shared_bytes = artifact.shared_bytes + job.tile.smem_bytes;
    fmt::print("{:<8}{:<10}{:>8.0f}{:>11}{:>15}{:>13}{:>13}\n", name_of(job.pipeline), job.arch,
               artifact.compile_ms, artifact.registers, shared_bytes, artifact.spill_bytes,
               artifact.image.size());
    figures.push_back({{"kernel", name_of(job.pipeline)},
                       {"arch", job.arch},
                       {"ms", artifact.compile_ms},
                       {"registers", artifact.registers},
                       {"shared_bytes", shared_bytes},
                       {"spill_bytes", artifact.spill_bytes}});
  }
  write_json(json, figures);
  return 0;
}

}  // namespace

int compile(const Arguments& arguments) {
  std::string variant = "softmax", heads = "32,8,128", dtype = "bf16", json;
  std::vector<std::string> archs = {"sm_90a"}, params;
  int page = 16;
  bool show_units = false;
  Options options("compile", "Compiles a variant's kernels for GPU architectures, without a GPU.");
  options.text(variant, "--variant", "a registered name, or a spec file");
  options.texts(archs, "--arch", "one or more of sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120");
  options.text(heads, "--heads", "query heads, KV heads, head_dim");
  options.number(page, "--page", "keys of a page; 0: ragged");
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
                               .q_dtype = parse_dtype(dtype),
                               .kv_dtype = parse_dtype(dtype),
                               .page_size = page,
                               .constants = parse_params(params)};
  check_at_least(page, 0, "--page");
  std::vector<KernelJob> jobs;
  for (const std::string& arch : archs) {
    for (KernelJob& job : kernel_jobs(engine, config, arch)) jobs.push_back(std::move(job));
  }
  return show_units ? show(jobs) : compile_all(jobs, config.variant, json);
}

}  // namespace heddle::tools
