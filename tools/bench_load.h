// Where a kernel comes from, and what each way costs the host.
#pragma once

#include "tools/bench_host.h"

namespace heddle::tools {

// Cache look-ups and compiles of `config`'s decode kernel, and Engine::attention() around them.
// Uses a folder of its own as the disk, which is gone afterwards.
void add_loads(Engine& engine, const AttentionConfig& config, std::vector<HostCost>& costs);

}  // namespace heddle::tools
