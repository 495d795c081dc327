// A variant compiled for the host: the CPU device's kernel and the double-precision reference.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "runtime/kernel_cache.h"
#include "variants/reference_attention.h"

namespace heddle {

using HostRun = void (*)(const AttentionParams*, const VariantArgs*, int pipeline);
using HostAppend = void (*)(const AppendKvParams*, const VariantArgs*);
using HostReference = void (*)(const ReferenceProblem*, const VariantArgs*);

// The built-in variants, rendered and compiled at build time (tools/render_builtin.cc).
struct BuiltinUnit {
  std::string_view hooks;  // builtin_key() of the variant
  HostRun run;
  HostAppend append;
  HostReference reference;
};
std::span<const BuiltinUnit> builtin_units();
// More units that the program was built with; they must outlive it. Thread-safe.
void add_units(std::span<const BuiltinUnit> units);

struct HostKernel {
  HostRun run = nullptr;
  HostAppend append = nullptr;
  HostReference reference = nullptr;
  KernelInfo info;
};

// Finds the variant among the units that were built in, else compiles it with the host's C++ compiler (or
// finds it in the cache). Kernels stay loaded as long as the process. Thread-safe.
HostKernel host_kernel(KernelCache& cache, const Variant& variant, const std::vector<double>& values);

// All template texts, for compilers.
std::span<const SourceFile> template_files();
const std::string& template_digest();

}  // namespace heddle
