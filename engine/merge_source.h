// The kernel of merge_states: its unit, and how one is built for an architecture.
#pragma once

#include <string>

#include "engine/launch_set.h"
#include "engine/merge_states.h"

namespace heddle {

Unit render_merge_states_unit(const MergeConfig& config);
KernelBuild build_merge_states(KernelCache& cache, Compiler& compiler, const MergeConfig& config, const std::string& arch);

// CTAs that `rows` rows of heads keep busy.
std::int64_t merge_ctas(const MergeConfig& config, std::int64_t rows);

}  // namespace heddle
