// Renders the units that the compilers get: one kernel of one Attention for NVRTC, or one variant
// for the CPU device (its work-list skeleton and its double-precision reference).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tiles.h"

namespace heddle {

struct Unit {
  std::string text;
  std::string path;   // as compiler messages show it
  std::string entry;  // its extern "C" symbol
};

// What stands in front of a GPU unit's hooks: what it is, in a line, and its skeleton's file in templates.
std::string unit_prologue(std::string_view what, std::string_view skeleton);
// How a kernel makes them of its arguments.
inline constexpr std::string_view kMakeHooks =
    "  const heddle::unit::Hooks hooks(args, {params.num_kv_heads * heddle::unit::Spec::kGroup, params.num_kv_heads, "
    "heddle::unit::Spec::kGroup, heddle::unit::Spec::kHeadDim, heddle::unit::Spec::kHeadDimVo});\n";

Unit render_gpu_unit(Pipeline pipeline, const Variant& variant, const std::vector<double>& values,
                     const AttentionConfig& config, const TileConfig& tile);

// append_kv as the config asks for it. `values` are Variant::resolve()'s.
Unit render_append_kv_unit(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config);
// Keys that append finds transformed, for a config that transforms_keys() is true of.
Unit render_transformed_keys_unit(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config);
inline constexpr int kRowKernelThreads = 128;  // of both

// The variant as kernels read K and V with it: without the hooks that append_kv has applied.
Variant reading_variant(const Variant& variant, const AttentionConfig& config);

// Of VariantArgs, what this variant's kernels take: every launch copies it.
int kernel_arg_bytes(const Variant& variant);

// Symbols <entry>_run(const AttentionParams*, const VariantArgs*, int pipeline),
// <entry>_append(const AppendKvParams*, const VariantArgs*) and <entry>_reference(const ReferenceProblem*, const VariantArgs*).
Unit render_host_unit(const Variant& variant, const std::vector<double>& values, const std::string& entry);

}  // namespace heddle
