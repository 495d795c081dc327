#include "engine/host_kernel.h"

#include <map>

#include "engine/hook_source.h"
#include "engine/kernel_source.h"
#include "runtime/host_compiler.h"
#include "runtime/host_module.h"

namespace heddle {
namespace embedded {
std::span<const EmbeddedFile> templates();
}  // namespace embedded

namespace {

// Entry of a unit that is compiled at run time; built-in ones have their own.
constexpr const char* kEntry = "heddle_host";

struct LoadedModules {
  std::mutex mutex;
  std::map<std::string, std::pair<HostModule, KernelInfo>> by_key;
};

// Modules are never unloaded: an Attention may hold their functions.
LoadedModules& loaded_modules() {
  static auto* modules = new LoadedModules;
  return *modules;
}

struct UnitTables {
  std::mutex mutex;
  std::vector<std::span<const BuiltinUnit>> tables{builtin_units()};
};

UnitTables& unit_tables() {
  static auto* tables = new UnitTables;
  return *tables;
}

HostCompiler& host_compiler() {
  static HostCompiler compiler;
  return compiler;
}

HostKernel functions_of(const HostModule& module, KernelInfo info) {
  return {reinterpret_cast<HostRun>(module.symbol(fmt::format("{}_run", kEntry))),
          reinterpret_cast<HostAppend>(module.symbol(fmt::format("{}_append", kEntry))),
          reinterpret_cast<HostReference>(module.symbol(fmt::format("{}_reference", kEntry))), std::move(info)};
}

HostKernel compile(KernelCache& cache, const Variant& variant, const std::vector<double>& values) {
  const Unit unit = render_host_unit(variant, values, kEntry);
  const CompileRequest request{.name = "host unit of " + variant.name, .unit = unit.text, .unit_path = unit.path,
                               .headers = template_files(), .headers_digest = template_digest(), .arch = "cpu",
                               .entry = unit.entry};
  const KernelCache::Result result = cache.get(host_compiler(), request);
  LoadedModules& modules = loaded_modules();
  const std::lock_guard lock(modules.mutex);
  const KernelInfo info{.kernel = "host", .arch = "cpu", .compile_ms = result.artifact->compile_ms,
                        .origin = name_of(result.origin)};
  auto found = modules.by_key.find(result.key);
  if (found == modules.by_key.end())
    found = modules.by_key.emplace(result.key, std::make_pair(HostModule(result.artifact->image), info)).first;
  return functions_of(found->second.first, info);
}

}  // namespace

std::span<const SourceFile> template_files() {
  static const std::vector<SourceFile> files = [] {
    std::vector<SourceFile> list;
    for (const EmbeddedFile& file : embedded::templates()) list.push_back({file.path, file.text});
    return list;
  }();
  return files;
}

const std::string& template_digest() {
  static const std::string digest = digest_of(template_files());
  return digest;
}

HostKernel host_kernel(KernelCache& cache, const Variant& variant, const std::vector<double>& values) {
  const std::string key = builtin_key(variant, values);
  {
    const std::lock_guard lock(unit_tables().mutex);
    for (const std::span<const BuiltinUnit> table : unit_tables().tables)
      for (const BuiltinUnit& unit : table)
        if (unit.hooks == key)
          return {unit.run, unit.append, unit.reference, {.kernel = "host", .arch = "cpu", .origin = "built in"}};
  }
  return compile(cache, variant, values);
}

void add_units(std::span<const BuiltinUnit> units) {
  const std::lock_guard lock(unit_tables().mutex);
  unit_tables().tables.push_back(units);
}

}  // namespace heddle
