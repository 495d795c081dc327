// Host units to shared objects with the machine's own C++ compiler.
#pragma once

#include <optional>
#include <string>

#include "runtime/compiler.h"

namespace heddle {

class HostCompiler : public Compiler {
 public:
  // Takes $HEDDLE_CXX, else the first of c++, g++ and clang++ on PATH. Throws Error(unsupported)
  // where there is none. `path` wins over both.
  explicit HostCompiler(const std::string& path = {});

  // Why there is no compiler here; nullopt where there is.
  static std::optional<std::string> unavailable();

  const std::string& identity() const override;
  Artifact compile(const CompileRequest& request) override;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string identity_;
};

}  // namespace heddle
