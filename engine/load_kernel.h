// From a built image to a kernel that can be launched.
#pragma once

#include <functional>
#include <string>

#include "engine/launch_set.h"
#include "engine/state.h"

namespace heddle::detail {

// Loads what `build` gives, or shares it where another handle of the engine has it. An image that the
// driver refuses is dropped from the cache and built once more. Requires: the engine is on a GPU, whose
// context is current.
LoadedKernel load_kernel(EngineState& engine, std::string_view name, const std::function<KernelBuild()>& build);

}  // namespace heddle::detail
