// One kernel to be compiled for an architecture that need not be here: what `compile` times and
// `cache warm --arch` stores.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kernel_source.h"
#include "runtime/compiler.h"

namespace heddle::tools {

struct KernelJob {
  std::string name;  // "decode of gemma2"
  Pipeline pipeline = Pipeline::decode;
  std::string arch;
  TileConfig tile{};
  Unit unit;

  CompileRequest request() const;  // points into this job
};

// The launch set of `config` for an architecture: the very units that an Engine on such a GPU asks
// its cache for. Error where the architecture is unknown.
std::vector<KernelJob> kernel_jobs(const Engine& engine, const AttentionConfig& config,
                                   const std::string& arch);

}  // namespace heddle::tools
