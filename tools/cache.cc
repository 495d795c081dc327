// heddle cache: where compiled kernels are kept, what is there, filling and clearing it.
#include <ctime>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/launch_set.h"
#include "runtime/kernel_cache.h"
#include "runtime/nvrtc.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace heddle::tools {
namespace {

int directory() {
  const KernelCache cache;
  if (cache.directory().empty())
    fail(ErrorKind::io, "Nothing is cached on disk here: {}", cache.why_no_disk());
  fmt::print("{}\n", cache.directory());
  return 0;
}

int list(const std::string& json) {
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  std::uint64_t bytes = 0;
  for (const CacheEntry& entry : KernelCache().list()) {
    const std::time_t used_at = std::time_t(entry.used_at);
    char day[32] = "";
    std::strftime(day, sizeof day, "%Y-%m-%d", std::localtime(&used_at));
    fmt::print("{}  {:<8} {:>9} bytes  {:>7.0f} ms  {:>3} registers  used {}  {}\n",
               entry.key.substr(0, 16), entry.arch, entry.bytes, entry.compile_ms, entry.registers,
               day, entry.name);
    figures.push_back({{"key", entry.key},
                       {"kernel", entry.name},
                       {"arch", entry.arch},
                       {"bytes", entry.bytes},
                       {"ms", entry.compile_ms},
                       {"registers", entry.registers},
                       {"used_at", entry.used_at}});
    bytes += entry.bytes;
  }
  fmt::print("{} kernels, {:.1f} MB\n", figures.size(), double(bytes) / 1e6);
  write_json(json, figures);
  return 0;
}

int clear() {
  KernelCache cache;
  fmt::print("{} kernels removed\n", cache.clear());
  return 0;
}

AppendKv parse_append_kv(const std::string& text) {
  for (const AppendKv mode : {AppendKv::none, AppendKv::copy, AppendKv::transform})
    if (text == name_of(mode)) return mode;
  fail(ErrorKind::invalid_argument, "append_kv is \"{}\"; it may be none, copy or transform.", text);
}

// One entry of a list of configurations, with an error that says which.
AttentionConfig read_config(Engine& engine, const nlohmann::json& entry, const std::string& where) {
  AttentionConfig config;
  try {
    config.variant = resolve_variant(engine, entry.value("variant", "softmax"));
    const auto heads = entry.at("heads").get<std::vector<int>>();
    if (heads.size() != 3 && heads.size() != 4)
      fail(ErrorKind::invalid_argument,
           "{} has {} numbers as \"heads\"; they are query heads, KV heads, head_dim and, where it differs, "
           "head_dim_vo.",
           where, heads.size());
    config.num_qo_heads = heads[0];
    config.num_kv_heads = heads[1];
    config.head_dim = heads[2];
    config.head_dim_vo = heads.size() == 4 ? heads[3] : 0;
    config.q_dtype = config.kv_dtype = parse_dtype(entry.value("dtype", "bf16"));
    config.page_size = entry.value("page", 16);
    config.max_qo_len = entry.value("max_qo_len", 0);
    config.max_requests = entry.value("max_requests", 0);
    config.append_kv = parse_append_kv(entry.value("append_kv", "none"));
    config.constants = entry.value("constants", ParamValues());
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::invalid_argument,
         "{} is not a configuration ({}); one is written {{\"variant\": \"softmax\", \"heads\": "
         "[32, 8, 128], "
         "\"dtype\": \"bf16\", \"page\": 16, \"max_qo_len\": 0}}.",
         where, error.what());
  }
  return config;
}

void print_warmed(const AttentionConfig& config, std::string_view kernel, std::string_view arch,
                  std::string_view origin, double ms) {
  fmt::print("{} {},{},{}{} {} for {}: {} ({:.0f} ms)\n", config.variant, config.num_qo_heads,
             config.num_kv_heads, config.head_dim,
             config.vo_dim() != config.head_dim ? fmt::format(",{}", config.vo_dim()) : "", kernel, arch, origin, ms);
}

// Kernels for GPUs that need not be here, as when an image is built.
void warm_for(KernelCache& cache, const Engine& engine, const AttentionConfig& config,
              const std::string& arch, Progress& progress) {
  NvrtcCompiler compiler;
  check_config(config);
  const Variant& variant = engine.variants().at(config.variant);
  for (const Pipeline pipeline : launch_set(config)) {
    const KernelBuild build =
        build_kernel(cache, compiler, pipeline, variant, variant.resolve(config.constants), config,
                     arch, limits_of(arch));
    progress.clear();
    print_warmed(config, name_of(pipeline), arch, name_of(build.result.origin),
                 build.result.artifact->compile_ms);
  }
  check_append_kv(variant, config);
  const auto warm_rows = [&](std::string_view kernel, const auto& build_rows) {
    const KernelBuild build = build_rows(cache, compiler, variant, variant.resolve(config.constants), config, arch);
    progress.clear();
    print_warmed(config, kernel, arch, name_of(build.result.origin), build.result.artifact->compile_ms);
  };
  if (config.append_kv != AppendKv::none) warm_rows("append_kv", build_append_kv);
  if (transforms_keys(variant, config)) warm_rows("transformed_keys", build_transformed_keys);
}

int warm(const std::string& file, const std::string& device,
         const std::vector<std::string>& archs) {
  const nlohmann::json root = parse_json(read_text_file(file), file);
  if (!root.is_array())
    fail(ErrorKind::invalid_argument, "{} is not a list of configurations.", file);
  Engine engine({.device = archs.empty() ? parse_device(device) : DeviceKind::cpu});
  KernelCache cache;
  Progress progress(int(root.size()));
  for (std::size_t i = 0; i < root.size(); ++i) {
    const AttentionConfig config =
        read_config(engine, root[i], fmt::format("Entry {} of {}", i, file));
    progress.step(config.variant);
    if (archs.empty()) {
      const Attention attention = engine.attention(config);
      progress.clear();
      for (const KernelInfo& kernel : attention.kernels()) {
        print_warmed(config, kernel.kernel, kernel.arch, kernel.origin, kernel.compile_ms);
      }
    }
    for (const std::string& arch : archs) warm_for(cache, engine, config, arch, progress);
  }
  return 0;
}

}  // namespace

int cache(const Arguments& arguments) {
  std::string action, file, json, device = "auto";
  std::vector<std::string> archs;
  Options options("cache", "Shows, fills or clears the cache of compiled kernels.");
  options.text(action, "action", "dir, list, warm FILE or clear");
  options.text(file, "file",
               "warm: JSON list of {variant, heads, dtype, page, max_qo_len, max_requests, append_kv, constants}");
  options.text(json, "--json", "list: write the entries to this file");
  options.text(device, "--device", "warm: auto, cuda or cpu");
  options.texts(archs, "--arch", "warm: for these architectures instead, without a GPU");
  if (!options.parse(arguments)) return 0;
  if (action == "dir") return directory();
  if (action == "list" || action.empty()) return list(json);
  if (action == "clear") return clear();
  if (action != "warm") {
    fail(ErrorKind::invalid_argument,
         "heddle cache cannot `{}`; it can dir, list, warm FILE and clear.", action);
  }
  if (file.empty())
    fail(ErrorKind::invalid_argument,
         "heddle cache warm needs a file with a list of configurations.");
  return warm(file, device, archs);
}

}  // namespace heddle::tools
