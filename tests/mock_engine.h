// An Engine whose GPU is the mock driver: kernels are really compiled, and never run.
#pragma once

#include <functional>
#include <string>

#include "runtime/nvrtc.h"
#include "tests/engine_support.h"
#include "tests/mock_driver.h"

namespace heddle_tests {

// 0 where the work was content, or where there is no compiler for it.
inline int with_mock_engine(const char* role, const std::function<void(heddle::Engine&)>& work) {
  if (const auto why = heddle::NvrtcCompiler::unavailable()) {
    WARN("skipped: " << *why);
    return 0;
  }
  const std::string cache = test_cache_dir();
  return with_mock(role, [&] {
    heddle::Engine engine({.device = heddle::DeviceKind::cuda, .cache_dir = cache});
    work(engine);
  });
}

// What of `call` reached the driver, with the numbers of the streams: made in order, from 1.
inline std::string mock_calls_of(const std::function<void()>& call) {
  const std::size_t before = std::string(mock_calls()).size();
  call();
  std::string words, all = std::string(mock_calls()).substr(before);
  for (std::size_t at = 0, end; (end = all.find(' ', at)) != std::string::npos; at = end + 1)
    for (const char* name : {"cuEventRecord", "cuStreamWaitEvent", "copy_async", "cuLaunchKernelEx"})
      if (all.compare(at, std::string(name).size(), name) == 0) words += all.substr(at, end - at) + ' ';
  return words;
}

}  // namespace heddle_tests
