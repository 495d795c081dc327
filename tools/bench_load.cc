#include "tools/bench_load.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "engine/error.h"
#include "engine/host_kernel.h"
#include "engine/launch_set.h"
#include "runtime/nvrtc.h"
#include "tools/host_timer.h"

namespace heddle::tools {
namespace {

constexpr int kCompiles = 3, kDiskHits = 9, kAttentions = 30;
constexpr int kLookups = 1000;  // in one sample: a clock is too coarse for one

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "heddle-bench-XXXXXX").string();
    if (!mkdtemp(path_.data()))
      fail(ErrorKind::io, "No folder can be made in {}.",
           std::filesystem::temp_directory_path().string());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The decode kernel as the engine would ask for it.
struct DecodeKernel {
  const Variant& variant;
  AttentionConfig config;
  std::string arch;
  std::vector<double> values = variant.resolve({});

  KernelBuild build(KernelCache& cache, Compiler& compiler) const {
    return build_kernel(cache, compiler, Pipeline::decode, variant, values, config, arch,
                        limits_of(arch));
  }
};

void add_compile(const DecodeKernel& kernel, NvrtcCompiler& compiler,
                 std::vector<HostCost>& costs) {
  const double us = median_us(
      kCompiles, [] {},
      [&] {
        KernelCache cache({.disk = false});
        kernel.build(cache, compiler);
      });
  costs.push_back({"compile_cold", us,
                   fmt::format("rendering and compiling the decode unit for {}", kernel.arch)});
}

void add_disk_hit(const DecodeKernel& kernel, NvrtcCompiler& compiler,
                  std::vector<HostCost>& costs) {
  const TemporaryFolder folder;
  const CacheOptions options{.dir = folder.path()};
  KernelCache first(options);
  kernel.build(first, compiler);
  std::unique_ptr<KernelCache> cache;
  const auto forget = [&] { cache = std::make_unique<KernelCache>(options); };
  const double us = median_us(kDiskHits, forget, [&] { kernel.build(*cache, compiler); });
  costs.push_back({"disk_hit", us, "rendering, and reading the kernel from the disk cache"});
}

void add_memory_hit(const DecodeKernel& kernel, NvrtcCompiler& compiler,
                    std::vector<HostCost>& costs) {
  KernelCache cache({.disk = false});
  const KernelBuild build = kernel.build(cache, compiler);
  const double build_us = median_us(
      kAttentions, [] {}, [&] { kernel.build(cache, compiler); });
  const CompileRequest request{.name = "decode",
                               .unit = build.unit.text,
                               .unit_path = build.unit.path,
                               .headers_digest = template_digest(),
                               .arch = kernel.arch,
                               .entry = build.unit.entry};
  if (cache.get(compiler, request).origin != KernelCache::Origin::memory)
    fail(ErrorKind::unsupported,
         "The timed look-up does not ask for the key that the engine stores.");
  const double lookup_us = median_us(
      kAttentions, [] {},
      [&] {
        for (int i = 0; i < kLookups; ++i) cache.get(compiler, request);
      });
  costs.push_back(
      {"memory_hit", lookup_us / kLookups, "the cache's look-up of a kernel in memory"});
  costs.push_back({"memory_build", build_us, "rendering the unit, and that look-up"});
}

// The public call.
void add_attentions(Engine& engine, const AttentionConfig& config, std::vector<HostCost>& costs) {
  std::vector<Attention> made{engine.attention(config)};
  const double memory_us = median_us(
      kAttentions, [] {}, [&] { made.push_back(engine.attention(config)); });
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  costs.push_back(
      {"attention_memory", memory_us,
       on_gpu ? "Engine::attention, another one holds the kernel: rendering, look-up, its module shared"
              : "Engine::attention, variant built in"});
  if (!on_gpu) {
    costs.push_back({.cost = "attention_disk", .not_run = "the CPU device's variant is built in"});
    return;
  }
  const TemporaryFolder folder;
  std::vector<double> times;
  for (int i = 0; i <= kDiskHits; ++i) {
    Engine fresh({.device = DeviceKind::cuda, .cache_dir = folder.path()});
    const Attention attention = fresh.attention(config);
    if (attention.kernels()[0].origin == "disk")
      times.push_back(attention.kernels()[0].load_ms * 1e3);
  }
  HostCost cost{"attention_disk", median(times),
                "Engine::attention in a new engine: disk hit and loading the module"};
  if (times.empty()) cost.not_run = "no kernel came from the disk cache";
  costs.push_back(cost);
}

}  // namespace

void add_loads(Engine& engine, const AttentionConfig& config, std::vector<HostCost>& costs) {
  add_attentions(engine, config, costs);
  if (const auto why = NvrtcCompiler::unavailable()) {
    for (const char* cost : {"memory_hit", "memory_build", "disk_hit", "compile_cold"})
      costs.push_back({.cost = cost, .not_run = *why});
    return;
  }
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  const DecodeKernel kernel{.variant = engine.variants().at(config.variant),
                            .config = config,
                            .arch = on_gpu ? engine.device().arch : "sm_90a"};
  NvrtcCompiler compiler;
  add_memory_hit(kernel, compiler, costs);
  add_disk_hit(kernel, compiler, costs);
  add_compile(kernel, compiler, costs);
}

}  // namespace heddle::tools
