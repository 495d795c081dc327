// Work in a child process where libcuda.so.1 is the mock (runtime_mock_cuda.cc): the driver is found
// once a process. Catch2 does not reach into the child; expect() throws, and the child says why.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/runtime_support.h"

namespace heddle_tests {

inline void expect(bool is_so, const std::string& what) {
  if (!is_so) throw std::runtime_error("expected: " + what);
}

inline void expect_in(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "\"" + part + "\" in \"" + text + "\"");
}

inline const char* (*mock_calls)() = nullptr;

// Runs `work` in a child where libcuda.so.1 is the mock in the given role: the loader takes a
// library that is already mapped under that name.
inline int with_mock(const char* role, const std::function<void()>& work) {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) {
    WARN("skipped: another case has mapped this machine's own libcuda.so.1");
    return 0;
  }
  return end_of(start_child([&] {
    setenv("MOCK_CUDA", role, 1);
    void* library = dlopen(HEDDLE_MOCK_CUDA, RTLD_NOW | RTLD_GLOBAL);
    expect(library != nullptr, "the mock at " HEDDLE_MOCK_CUDA);
    mock_calls = reinterpret_cast<const char* (*)()>(dlsym(library, "mock_calls"));
    work();
    return 0;
  }));
}

inline heddle::Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const heddle::Error& error) {
    return error;
  }
  throw std::runtime_error("expected: an error");
}

}  // namespace heddle_tests
