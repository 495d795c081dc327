// Inside the room only: a private folder that vanishes with its owner.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "engine/error.h"

namespace heddle {

inline std::string temp_root() {
  const char* root = std::getenv("TMPDIR");
  return root != nullptr && root[0] == '/' ? root : "/tmp";
}

class TempDir {
 public:
  TempDir() : path_(temp_root() + "/heddle-XXXXXX") {
    // mkdtemp makes it 0700: nobody else may put a header beside ours.
    if (mkdtemp(path_.data()) == nullptr) {
      fail(ErrorKind::io,
           "No temporary folder can be made in {} ({}); set TMPDIR to a folder that can be written.",
           temp_root(), std::generic_category().message(errno));
    }
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace heddle
