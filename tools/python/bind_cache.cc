#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "engine/launch_set.h"
#include "runtime/kernel_cache.h"
#include "runtime/nvrtc.h"
#include "tools/python/bind.h"

namespace heddle::python {
namespace {

namespace nb = nanobind;

KernelCache open_cache(const std::optional<std::string>& dir) {
  return KernelCache({.dir = dir.value_or("")});
}

nb::list entries(const std::optional<std::string>& dir) {
  nb::list list;
  for (const CacheEntry& entry : open_cache(dir).list()) {
    nb::dict row;
    row["key"] = entry.key;
    row["name"] = entry.name;
    row["arch"] = entry.arch;
    row["bytes"] = entry.bytes;
    row["compile_ms"] = entry.compile_ms;
    row["registers"] = entry.registers;
    row["used_at"] = entry.used_at;
    list.append(row);
  }
  return list;
}

KernelInfo info_of(std::string_view kernel, const std::string& arch, const KernelBuild& build,
                   std::chrono::duration<double, std::milli> time) {
  const Artifact& artifact = *build.result.artifact;
  return {.kernel = std::string(kernel),
          .arch = arch,
          .compile_ms = artifact.compile_ms,
          .load_ms = time.count(),
          .registers = artifact.registers,
          .shared_bytes = build.tile.smem_bytes,
          .spill_bytes = artifact.spill_bytes,
          .origin = name_of(build.result.origin)};
}

// Kernels for a GPU that need not be here, as when an image is built.
std::vector<KernelInfo> compile_for(const PyEngine& engine, const AttentionConfig& config,
                                    const std::string& arch, const std::optional<std::string>& dir,
                                    const std::vector<std::string>& nvrtc_dirs) {
  check_config(config);
  const Variant variant = engine.engine.variants().at(config.variant);
  check_sharing(variant, config);
  check_append_kv(variant, config);
  const nb::gil_scoped_release release;
  NvrtcCompiler compiler(nvrtc_dirs);
  KernelCache cache = open_cache(dir);
  const std::vector<double> values = variant.resolve(config.constants);
  std::vector<KernelInfo> made;
  const auto add = [&](std::string_view kernel, const auto& build) {
    const auto begin = std::chrono::steady_clock::now();
    const KernelBuild built = build();
    made.push_back(info_of(kernel, arch, built, std::chrono::steady_clock::now() - begin));
  };
  for (const Pipeline pipeline : launch_set(config))
    add(name_of(pipeline), [&] {
      return build_kernel(cache, compiler, pipeline, variant, values, config, arch,
                          limits_of(arch));
    });
  if (config.append_kv != AppendKv::none)
    add("append_kv",
        [&] { return build_append_kv(cache, compiler, variant, values, config, arch); });
  return made;
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def(
      "cache_directory",
      [](const std::optional<std::string>& dir) { return open_cache(dir).directory(); },
      nb::arg("dir") = nb::none());
  m.def("cache_entries", &entries, nb::arg("dir") = nb::none());
  m.def(
      "cache_clear", [](const std::optional<std::string>& dir) { return open_cache(dir).clear(); },
      nb::arg("dir") = nb::none());
  m.def("compile_for", &compile_for, nb::arg("engine"), nb::arg("config"), nb::arg("arch"),
        nb::arg("dir"), nb::arg("nvrtc_dirs"));
}

}  // namespace heddle::python
