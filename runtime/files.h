// Inside the room only: bytes to files, and a private folder that vanishes with its owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/error.h"

namespace heddle {

// False with errno where not all of them could be written.
inline bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

inline std::string temp_root() {
  const char* root = std::getenv("TMPDIR");
  return root != nullptr && root[0] == '/' ? root : "/tmp";
}

class TempDir {
 public:
  TempDir() : path_(temp_root() + "/heddle-XXXXXX") {
    // mkdtemp makes it 0700: nobody else may put a header beside ours.
    if (mkdtemp(path_.data()) == nullptr) {
      fail(
          ErrorKind::io,
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
