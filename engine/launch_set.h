// Which kernels an Attention holds, and how one is built for an architecture: the engine does it for
// its own GPU, `heddle compile` and `heddle cache warm` for GPUs that need not be here.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kernel_source.h"
#include "runtime/kernel_cache.h"

namespace heddle {

// Packed rows of a decode query tile: 8 where no request of the declared maxima has more, which halves its products.
int decode_rows(const AttentionConfig& config);
inline constexpr int kMaxDecodeRows = 16;  // rows of the decode kernel's one m16 tile
// Packed rows that a request has at most on a pipeline, for its tiles; 0: any number.
int most_rows(Pipeline pipeline, const AttentionConfig& config);

// Refuses, with a sentence, what no kernel can serve.
void check_config(const AttentionConfig& config);

// The same of what a variant's transforms ask of a row. `values` are Variant::resolve()'s.
void check_rows(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config);

// The launch set follows from the shapes and the declared maximum alone.
std::vector<Pipeline> launch_set(const AttentionConfig& config);

// A kernel as the planner sees it.
PipelineShape pipeline_shape(Pipeline pipeline, const TileConfig& tile, int num_ctas, const HeadDims& dims);

// The same of AttentionConfig::append_kv.
void check_append_kv(const Variant& variant, const AttentionConfig& config);

struct KernelBuild {
  TileConfig tile{};
  Unit unit;
  KernelCache::Result result;
  double ms_in_vain = 0;  // of compiles with tiles in front of this one, which left registers in memory
};

// Error where rows of different requests would not see a shared prefix alike.
void check_sharing(const Variant& variant, const AttentionConfig& config);

// Renders and compiles (or finds) the kernel with the first tile of tile_candidates() that leaves
// no register in memory, else with the last one. `values` are Variant::resolve()'s.
KernelBuild build_kernel(KernelCache& cache, Compiler& compiler, Pipeline pipeline, const Variant& variant,
                         const std::vector<double>& values, const AttentionConfig& config, const std::string& arch,
                         DeviceLimits limits);

// Whether decode begins where append, in front of it, leaves SMs free (templates/work.cuh says how).
bool runs_side_by_side(const AttentionConfig& config);

// Whether keys are transformed ahead of append (planner/transformed_keys.h) where a workspace has room for them.
bool transforms_keys(const Variant& variant, const AttentionConfig& config);

// The kernels of append_kv, for a config that asks for it, and of keys that are transformed ahead.
KernelBuild build_transformed_keys(KernelCache& cache, Compiler& compiler, const Variant& variant,
                                   const std::vector<double>& values, const AttentionConfig& config,
                                   const std::string& arch);
KernelBuild build_append_kv(KernelCache& cache, Compiler& compiler, const Variant& variant,
                            const std::vector<double>& values, const AttentionConfig& config, const std::string& arch);

}  // namespace heddle
