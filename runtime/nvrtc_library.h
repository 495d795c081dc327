// Inside the room only: libnvrtc as it was found at run time.
#pragma once

#include <nvrtc.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/nvrtc.h"

namespace heddle {

struct NvrtcCompiler::Library {
  decltype(&nvrtcVersion) Version = nullptr;
  decltype(&nvrtcGetErrorString) GetErrorString = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) GetNumSupportedArchs = nullptr;
  decltype(&nvrtcGetSupportedArchs) GetSupportedArchs = nullptr;
  decltype(&nvrtcCreateProgram) CreateProgram = nullptr;
  decltype(&nvrtcDestroyProgram) DestroyProgram = nullptr;
  decltype(&nvrtcCompileProgram) CompileProgram = nullptr;
  decltype(&nvrtcGetCUBINSize) GetCUBINSize = nullptr;
  decltype(&nvrtcGetCUBIN) GetCUBIN = nullptr;
  decltype(&nvrtcGetProgramLogSize) GetProgramLogSize = nullptr;
  decltype(&nvrtcGetProgramLog) GetProgramLog = nullptr;

  std::string path;
  std::string build;  // GNU build ids of the library and of its builtins
  int major = 0;
  int minor = 0;
  std::vector<int> archs;

  // One library a process for each list of folders; null with a sentence in `why` where there is
  // none. Never closed: NVRTC leaves threads and state behind.
  static std::shared_ptr<const Library> open(std::span<const std::string> dirs, std::string& why);
};

}  // namespace heddle
