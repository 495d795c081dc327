#include "runtime/host_module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "runtime/files.h"

namespace heddle {

namespace {

// NOTE: the loader takes two libraries of one path for the same, even when the first is only still
// mapped because it cannot be unloaded (unique symbols), and descriptors are reused. So each path
// is spelled differently: the serial number's bits as "./" or "/".
std::string unique_path_of(int file) {
  static std::atomic<unsigned> serial{1};
  std::string path = "/proc/self/fd/";
  for (unsigned bits = serial++; bits != 0; bits >>= 1) path += (bits & 1) != 0 ? "./" : "/";
  return path + std::to_string(file);
}

void* open_from_memory(std::string_view image) {
  const int file = memfd_create("heddle", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* handle = nullptr;
  if (write_all(file, image)) handle = dlopen(unique_path_of(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  close(file);
  return handle;
}

// For systems without /proc or where memory files may not be executed.
void* open_from_file(std::string_view image) {
  const TempDir dir;
  std::string path = dir.path() + "/unit-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return nullptr;
  void* handle = nullptr;
  const bool is_written = write_all(file, image);
  close(file);
  if (is_written) handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return handle;
}

}  // namespace

HostModule::HostModule(std::string_view image) : handle_(open_from_memory(image)) {
  if (handle_ == nullptr) handle_ = open_from_file(image);
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    fail(ErrorKind::io, "A compiled CPU kernel of {} bytes cannot be loaded: {}.", image.size(),
         reason ? reason : "no temporary file can be written");
  }
}

HostModule::~HostModule() {
  if (handle_ != nullptr) dlclose(handle_);
}

HostModule::HostModule(HostModule&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}

HostModule& HostModule::operator=(HostModule&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void* HostModule::symbol(const std::string& name) const {
  void* address = handle_ != nullptr ? dlsym(handle_, name.c_str()) : nullptr;
  if (address == nullptr) {
    fail(ErrorKind::io, "The loaded CPU kernel exports no symbol {}; is it marked visible?", name);
  }
  return address;
}

}  // namespace heddle
