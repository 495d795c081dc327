// CUDA units to cubins with NVRTC, which is found and opened at run time.
//
// NVRTC 13.0 keeps state from one compile to the next: after a single -restrict or -G, plain
// compiles of the same process give other code, after -restrict wrong code. So the options are a
// fixed list and no caller can add one. Headers are passed in memory; there is no include path.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/compiler.h"

namespace heddle {

class NvrtcCompiler : public Compiler {
 public:
  // Looks for libnvrtc in $HEDDLE_NVRTC_PATH (the library or its folder), in `dirs`, on the
  // loader's path, in the usual toolkit folders and in the site-packages of the PyPI packages.
  // Throws Error(unsupported) with unavailable()'s sentence where there is none.
  explicit NvrtcCompiler(std::span<const std::string> dirs = {});
  ~NvrtcCompiler() override;

  // Why there is no NVRTC here; nullopt where there is.
  static std::optional<std::string> unavailable(std::span<const std::string> dirs = {});

  const std::string& identity() const override;
  Artifact compile(const CompileRequest& request) override;

  int version() const;                        // 13000 for 13.0
  const std::string& library_path() const;    // the file that was opened
  const std::vector<int>& supported() const;  // 80, 90, ... as NVRTC lists them

 private:
  struct Library;
  std::shared_ptr<const Library> library_;
  std::string identity_;
};

}  // namespace heddle
