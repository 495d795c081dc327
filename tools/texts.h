// The texts of this room that travel inside the binary: workloads.json, demo_variant.json, ...
#pragma once

#include <string_view>

namespace heddle::tools {

// `path` relative to the repository, "tools/workloads.json".
std::string_view embedded_text(std::string_view path);

}  // namespace heddle::tools
