// Texts that the build puts into the binary (tools/embed.cmake writes the tables).
#pragma once

#include <span>
#include <string_view>

namespace heddle::embedded {

struct File {
  std::string_view path;  // relative to the repository: "templates/decode.cuh"
  std::string_view text;
};

std::span<const File> builtin_specs();  // variants/*.json
std::span<const File> templates();      // templates/*.cuh, *.h and what host units include

}  // namespace heddle::embedded
