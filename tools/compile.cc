// heddle compile: a variant's GPU kernels for any architecture, without a GPU. Always compiles, so
// that the time is a compile's; the cache is neither asked nor filled.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/host_kernel.h"
#include "engine/kernel_source.h"
#include "runtime/nvrtc.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

struct Request {
  Variant variant;
  std::vector<double> values;
  AttentionConfig config;
};

struct Target {
  Pipeline pipeline;
  std::string arch;
};

// What one kernel came to. `shared_bytes` holds the tile's dynamic part too.
struct Compiled {
  Artifact artifact;
  int shared_bytes = 0;
};

Unit render(const Request& request, const Target& target, TileConfig& tile) {
  tile = choose_tile(target.pipeline, request.config.head_dim, limits_of(target.arch));
  return render_gpu_unit(target.pipeline, request.variant, request.values, request.config, tile);
}

Compiled compile_one(NvrtcCompiler& compiler, const Request& request, const Target& target) {
  TileConfig tile{};
  const Unit unit = render(request, target, tile);
  Compiled compiled;
  compiled.artifact = compiler.compile({.name = fmt::format("{} of {}", name_of(target.pipeline), request.variant.name),
                                        .unit = unit.text,
                                        .unit_path = unit.path,
                                        .headers = template_files(),
                                        .headers_digest = template_digest(),
                                        .arch = target.arch,
                                        .entry = unit.entry});
  compiled.shared_bytes = compiled.artifact.shared_bytes + tile.smem_bytes;
  return compiled;
}

int show(const Request& request, const std::vector<Target>& targets) {
  for (const Target& target : targets) {
    TileConfig tile{};
    const Unit unit = render(request, target, tile);
    fmt::print("// ---- {} for {}: {}\n{}\n", name_of(target.pipeline), target.arch, unit.path, unit.text);
  }
  return 0;
}

int compile_all(const Request& request, const std::vector<Target>& targets, const std::string& json) {
  NvrtcCompiler compiler;
  Progress progress(int(targets.size()));
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  fmt::print("{} with NVRTC {}.{}\n{:<8}{:<10}{:>8}{:>11}{:>15}{:>13}{:>13}\n", request.variant.name, compiler.version() / 1000,
             compiler.version() % 1000 / 10, "kernel", "arch", "ms", "registers", "shared bytes", "spill bytes", "image bytes");
  for (const Target& target : targets) {
    progress.step(fmt::format("{} {}", target.arch, name_of(target.pipeline)));
    const Compiled compiled = compile_one(compiler, request, target);
    const Artifact& artifact = compiled.artifact;
    progress.clear();
    fmt::print("{:<8}{:<10}{:>8.0f}{:>11}{:>15}{:>13}{:>13}\n", name_of(target.pipeline), target.arch, artifact.compile_ms,
               artifact.registers, compiled.shared_bytes, artifact.spill_bytes, artifact.image.size());
    figures.push_back({{"kernel", name_of(target.pipeline)},
                       {"arch", target.arch},
                       {"ms", artifact.compile_ms},
                       {"registers", artifact.registers},
                       {"shared_bytes", compiled.shared_bytes},
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
  Request request{.variant = engine.variants().at(resolve_variant(engine, variant))};
  request.values = request.variant.resolve(parse_params(params));
  request.config = {.variant = request.variant.name,
                    .num_qo_heads = shape.num_qo_heads,
                    .num_kv_heads = shape.num_kv_heads,
                    .head_dim = shape.head_dim,
                    .q_dtype = parse_dtype(dtype),
                    .kv_dtype = parse_dtype(dtype),
                    .page_size = page};
  std::vector<Target> targets;
  for (const std::string& arch : archs) {
    limits_of(arch);  // an unknown one is refused before the first is compiled
    for (const Pipeline pipeline : {Pipeline::decode, Pipeline::append}) targets.push_back({pipeline, arch});
  }
  return show_units ? show(request, targets) : compile_all(request, targets, json);
}

}  // namespace heddle::tools
