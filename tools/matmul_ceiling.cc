#include "tools/matmul_ceiling.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/gpu_timer.h"
#include "tools/random.h"

namespace heddle::tools {
namespace {

// cuBLAS as far as one product needs it. The values are those of its stable C interface.
constexpr int kNoTranspose = 0, kBf16 = 14, kCompute32f = 68, kDefaultAlgorithm = -1;
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr int kSize = 8192;

using Handle = void*;
using Create = int (*)(Handle*);
using Destroy = int (*)(Handle);
using SetStream = int (*)(Handle, void*);
using SetWorkspace = int (*)(Handle, void*, std::size_t);
using GemmEx = int (*)(Handle, int, int, int, int, int, const void*, const void*, int, int,
                       const void*, int, int, const void*, void*, int, int, int, int);

// The folders above every `python3` on PATH: a virtual environment keeps its packages there.
std::vector<std::filesystem::path> python_prefixes() {
  std::vector<std::filesystem::path> prefixes = {"/usr", "/usr/local"};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder + "/python3", ignored)) continue;
    prefixes.push_back(std::filesystem::path(folder).parent_path());
  }
  return prefixes;
}

// Where the PyPI package keeps it: nvidia/cu13/lib of any Python here.
std::vector<std::string> python_folders() {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const std::filesystem::path& prefix : python_prefixes()) {
    for (const auto& entry : std::filesystem::directory_iterator(prefix / "lib", ignored)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        found.push_back(entry.path() / packages / "nvidia/cu13/lib");
      }
    }
  }
  return found;
}

void* open_cublas() {
  if (void* library = dlopen("libcublas.so.13", RTLD_NOW | RTLD_LOCAL)) return library;
  std::vector<std::string> folders = {"/usr/local/cuda/lib64", "/usr/local/cuda/lib"};
  for (const std::string& folder : python_folders()) folders.push_back(folder);
  for (const std::string& folder : folders) {
    // Its other half first: the loader would not look beside it.
    if (!dlopen((folder + "/libcublasLt.so.13").c_str(), RTLD_NOW | RTLD_GLOBAL)) continue;
    if (void* library = dlopen((folder + "/libcublas.so.13").c_str(), RTLD_NOW | RTLD_LOCAL))
      return library;
  }
  fail(ErrorKind::unsupported,
       "libcublas.so.13 is neither on the loader's path nor in a Python's nvidia/cu13/lib.");
}

template <typename Function>
Function symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) fail(ErrorKind::unsupported, "This libcublas.so.13 has no {}.", name);
  return reinterpret_cast<Function>(found);
}

void check(int status, const char* call) {
  if (status != 0) fail(ErrorKind::driver, "{} answered {} where 0 means success.", call, status);
}

DeviceBuffer random_matrix(std::uint64_t seed) {
  std::vector<std::uint16_t> values(std::size_t(kSize) * kSize);
  NormalSource(DType::bf16, seed).fill(values.data(), values.size());
  DeviceBuffer buffer(values.size() * 2);
  copy_to_device(buffer.data(), values.data(), buffer.bytes());
  return buffer;
}

}  // namespace

double matmul_tflops() {
  void* library = open_cublas();
  const auto gemm = symbol<GemmEx>(library, "cublasGemmEx");
  const auto set_stream = symbol<SetStream>(library, "cublasSetStream_v2");
  const auto set_workspace = symbol<SetWorkspace>(library, "cublasSetWorkspace_v2");
  Handle handle = nullptr;
  check(symbol<Create>(library, "cublasCreate_v2")(&handle), "cublasCreate");
  const DeviceBuffer a = random_matrix(1), b = random_matrix(2), c(a.bytes()),
                     workspace(kWorkspaceBytes);
  const float one = 1, zero = 0;
  const auto call = [&](Stream stream) {
    check(set_stream(handle, stream), "cublasSetStream");
    check(set_workspace(handle, workspace.data(), workspace.bytes()), "cublasSetWorkspace");
    check(
        gemm(handle, kNoTranspose, kNoTranspose, kSize, kSize, kSize, &one, a.data(), kBf16, kSize,
             b.data(), kBf16, kSize, &zero, c.data(), kBf16, kSize, kCompute32f, kDefaultAlgorithm),
        "cublasGemmEx");
  };
  const double us = graph_us(std::vector<std::function<void(Stream)>>(6, call));
  symbol<Destroy>(library, "cublasDestroy_v2")(handle);
  return 2.0 * kSize * kSize * kSize / us / 1e6;
}

}  // namespace heddle::tools
