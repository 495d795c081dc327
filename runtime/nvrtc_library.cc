// Where libnvrtc may be, and how it is opened.
#include "runtime/nvrtc_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

namespace heddle {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string{} : value;
}

// Newest first, as far as names tell: cuda-13.0 before cuda-12.8, python3.12 before python3.11.
void append_matches(std::vector<std::string>& paths, const std::string& pattern) {
  glob_t matches{};
  if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
    std::vector<std::string> found(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    std::sort(found.rbegin(), found.rend());
    paths.insert(paths.end(), found.begin(), found.end());
  }
  globfree(&matches);
}

std::vector<std::string> libraries_in(const std::string& dir) {
  std::vector<std::string> paths;
  append_matches(paths, dir + "/libnvrtc.so.[0-9]*");
  append_matches(paths, dir + "/libnvrtc.so");
  return paths;
}

std::vector<std::string> usual_dirs() {
  std::vector<std::string> dirs;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = environment(name); !home.empty()) {
      dirs.push_back(home + "/lib64");
      dirs.push_back(home + "/lib");
    }
  }
  append_matches(dirs, "/usr/local/cuda*/lib64");
  std::vector<std::string> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = environment(name); !prefix.empty()) prefixes.push_back(prefix);
  }
  if (const std::string home = environment("HOME"); !home.empty())
    prefixes.push_back(home + "/.local");
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  for (const std::string& prefix : prefixes) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const char* folder : {"cu13", "cuda_nvrtc"}) {
        append_matches(dirs, prefix + "/lib/python3*/" + packages + "/nvidia/" + folder + "/lib");
      }
    }
  }
  return dirs;
}

// In the order in which they are tried; a name without a slash means the loader's own search.
std::vector<std::string> candidates(std::span<const std::string> dirs) {
  std::vector<std::string> paths;
  if (const std::string wish = environment("HEDDLE_NVRTC_PATH"); !wish.empty()) {
    // A wish is an order: falling back to another library would hide a wrong path.
    if (fs::is_directory(wish)) return libraries_in(wish);
    return {wish};
  }
  const auto append_libraries = [&paths](std::span<const std::string> folders) {
    for (const std::string& dir : folders) {
      const std::vector<std::string> found = libraries_in(dir);
      paths.insert(paths.end(), found.begin(), found.end());
    }
  };
  append_libraries(dirs);
  paths.insert(paths.end(), {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  append_libraries(usual_dirs());
  return paths;
}

// NVRTC asks the loader for its builtins by bare name. Where the folder is not on the loader's
// path it finds them only if they are mapped already; without them every compile fails.
void* open_builtins(const std::string& library) {
  std::vector<std::string> paths;
  append_matches(paths, fs::path(library).parent_path().string() + "/libnvrtc-builtins.so.[0-9]*");
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return handle;
  }
  return nullptr;
}

struct BuildIdSearch {
  ElfW(Addr) base;
  std::string id;
};

void read_notes(const char* notes, std::size_t size, std::string& id) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof note);
    const std::size_t name_bytes = (note.n_namesz + 3) & ~3u;
    const std::size_t bytes = sizeof note + name_bytes + ((note.n_descsz + 3) & ~3u);
    if (bytes > size) return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + sizeof note, "GNU", 4) == 0) {
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        id +=
            fmt::format("{:02x}", static_cast<unsigned char>(notes[sizeof note + name_bytes + i]));
      }
      return;
    }
    notes += bytes;
    size -= bytes;
  }
}

int find_build_id(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<BuildIdSearch*>(data);
  if (info->dlpi_addr != search.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE || !search.id.empty()) continue;
    read_notes(reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr), header.p_memsz,
               search.id);
  }
  return 1;
}

// Tells patch releases apart, which nvrtcVersion does not. Without an id, the file's size must do.
std::string build_id(void* handle) {
  link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return "none";
  BuildIdSearch search{map->l_addr, {}};
  dl_iterate_phdr(find_build_id, &search);
  if (!search.id.empty()) return search.id;
  std::error_code ignored;
  return fmt::format("size {}", fs::file_size(map->l_name, ignored));
}

std::string path_of(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_name[0] == '\0') return asked;
  std::error_code error;
  const fs::path real = fs::canonical(map->l_name, error);
  return error ? std::string(map->l_name) : real.string();
}

template <typename Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

bool find_functions(void* handle, auto& library) {
  return find(handle, "nvrtcVersion", library.Version) &&
         find(handle, "nvrtcGetErrorString", library.GetErrorString) &&
         find(handle, "nvrtcGetNumSupportedArchs", library.GetNumSupportedArchs) &&
         find(handle, "nvrtcGetSupportedArchs", library.GetSupportedArchs) &&
         find(handle, "nvrtcCreateProgram", library.CreateProgram) &&
         find(handle, "nvrtcDestroyProgram", library.DestroyProgram) &&
         find(handle, "nvrtcCompileProgram", library.CompileProgram) &&
         find(handle, "nvrtcGetCUBINSize", library.GetCUBINSize) &&
         find(handle, "nvrtcGetCUBIN", library.GetCUBIN) &&
         find(handle, "nvrtcGetProgramLogSize", library.GetProgramLogSize) &&
         find(handle, "nvrtcGetProgramLog", library.GetProgramLog);
}

// False where `path` is no library that serves.
bool open_at(const std::string& path, auto& library, std::string& why) {
  const bool has_folder = path.find('/') != std::string::npos;
  void* builtins = has_folder ? open_builtins(path) : nullptr;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    why = reason ? reason : path;
    return false;
  }
  library.path = path_of(handle, path);
  if (builtins == nullptr) builtins = open_builtins(library.path);
  if (!find_functions(handle, library) ||
      library.Version(&library.major, &library.minor) != NVRTC_SUCCESS) {
    why = library.path + " is older than CUDA 11.2";
    return false;
  }
  int count = 0;
  if (library.GetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0) {
    library.archs.resize(count);
    library.GetSupportedArchs(library.archs.data());
  }
  library.build = build_id(handle) + " " + build_id(builtins);
  return true;
}

}  // namespace

std::shared_ptr<const NvrtcCompiler::Library> NvrtcCompiler::Library::open(
    std::span<const std::string> dirs, std::string& why) {
  struct Opened {
    std::shared_ptr<const Library> library;
    std::string why;
  };
  static std::mutex mutex;
  static auto& opened = *new std::map<std::vector<std::string>, Opened>;
  const std::vector<std::string> paths = candidates(dirs);
  const std::lock_guard lock(mutex);
  auto [at, is_new] = opened.try_emplace(paths);
  if (is_new) {
    for (const std::string& path : paths) {
      auto library = std::make_shared<Library>();
      std::string reason;
      if (open_at(path, *library, reason)) {
        at->second.library = std::move(library);
        break;
      }
      if (at->second.why.empty()) at->second.why = reason;
    }
  }
  if (at->second.library == nullptr) {
    const std::string wish = environment("HEDDLE_NVRTC_PATH");
    why = fmt::format(
        "NVRTC, the compiler of GPU kernels, was not found{} ({}); install the CUDA toolkit or the "
        "PyPI package nvidia-cuda-nvrtc, or set HEDDLE_NVRTC_PATH to the folder of libnvrtc.so",
        wish.empty() ? "" : " at HEDDLE_NVRTC_PATH=" + wish,
        at->second.why.empty() ? "no libnvrtc.so in that folder" : at->second.why);
  }
  return at->second.library;
}

}  // namespace heddle
