#include "engine/load_kernel.h"

#include <chrono>

namespace heddle::detail {
namespace {

LoadedModule load_module(const KernelBuild& built) {
  LoadedModule loaded;
  loaded.module = Module(built.result.artifact->image);
  loaded.kernel = loaded.module.kernel(built.unit.entry);
  loaded.kernel.set_max_dynamic_smem(built.tile.smem_bytes);
  loaded.registers = loaded.kernel.registers();
  loaded.ctas_per_sm = loaded.kernel.max_active_blocks_per_sm(built.tile.warps * 32, built.tile.smem_bytes);
  return loaded;
}

// Two threads that ask for one kernel at once may both load it; one of the modules is then kept.
std::shared_ptr<const LoadedModule> load_or_share(EngineState& engine, const KernelBuild& built) {
  const auto find = [&] {
    const std::lock_guard lock(engine.mutex);
    const auto at = engine.modules.find(built.result.key);
    return at == engine.modules.end() ? nullptr : at->second.lock();
  };
  if (auto shared = find()) return shared;
  auto loaded = std::make_shared<const LoadedModule>(load_module(built));
  const std::lock_guard lock(engine.mutex);
  std::erase_if(engine.modules, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = engine.modules[built.result.key];
  if (auto shared = entry.lock()) return shared;
  entry = loaded;
  return loaded;
}

}  // namespace

LoadedKernel load_kernel(EngineState& engine, std::string_view name, const std::function<KernelBuild()>& build) {
  engine.nvrtc_compiler();  // opened once a process, some 8 ms that are no kernel's
  const auto begin = std::chrono::steady_clock::now();
  LoadedKernel loaded;
  KernelBuild built = build();
  try {
    loaded.loaded = load_or_share(engine, built);
  } catch (const Error& error) {
    if (!Module::refused(error) || built.result.origin == KernelCache::Origin::compiled) throw;
    engine.cache.forget(built.result.key);
    built = build();
    loaded.loaded = load_or_share(engine, built);
  }
  loaded.tile = built.tile;
  loaded.kernel = loaded.loaded->kernel;
  const Artifact& artifact = *built.result.artifact;
  const std::chrono::duration<double, std::milli> load_time = std::chrono::steady_clock::now() - begin;
  loaded.info = {.kernel = std::string(name), .arch = engine.info.arch, .compile_ms = artifact.compile_ms,
                 .load_ms = load_time.count(), .registers = loaded.loaded->registers,
                 .shared_bytes = loaded.tile.smem_bytes, .spill_bytes = artifact.spill_bytes,
                 .origin = name_of(built.result.origin)};
  return loaded;
}

}  // namespace heddle::detail
