// What the runtime's tests share: a compiler that only counts, folders, requests and forked
// children.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/files.h"
#include "runtime/kernel_cache.h"

namespace heddle_tests {

class FakeCompiler : public heddle::Compiler {
 public:
  explicit FakeCompiler(std::string identity = "fake 1") : identity_(std::move(identity)) {}

  const std::string& identity() const override { return identity_; }

  heddle::Artifact compile(const heddle::CompileRequest& request) override {
    ++compiles;
    if (pause_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    // One line a compile, across processes: appends of a few bytes are atomic.
    if (!tally.empty()) std::ofstream(tally, std::ios::app) << "x\n" << std::flush;
    if (request.unit.find("bad") != std::string::npos) {
      heddle::fail_compile(request, "the fake", "spec.json:/hooks/k(1): error: bad is not good\n");
    }
    if (request.unit.find("unlucky") != std::string::npos) {
      heddle::fail(heddle::ErrorKind::io, "The disk is full.");
    }
    return {"image of " + request.unit + std::string(image_bytes, '\1'),
            "a note",
            12.5,
            40,
            256,
            8,
            16};
  }

  std::atomic<int> compiles = 0;
  int pause_ms = 0;
  std::size_t image_bytes = 0;
  std::string tally;

 private:
  std::string identity_;
};

inline heddle::CompileRequest request_of(std::string unit) {
  heddle::CompileRequest request;
  request.name = "a test";
  request.unit = std::move(unit);
  request.unit_path = "test.cu";
  request.headers_digest = "no headers";
  request.arch = "sm_90a";
  request.entry = "attention";
  return request;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::size_t count_lines(const std::string& path) {
  const std::string text = read_file(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

inline std::string entry_path(const std::string& dir, const std::string& key) {
  return dir + "/v1/" + key.substr(0, 2) + "/" + key;
}

// Starts a child that runs `work` and exits with its result. _exit: no test report of its own.
inline pid_t start_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int result = 99;
    try {
      result = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    _exit(result);
  }
  return child;
}

// The child's exit code, or 128 + the signal that ended it.
inline int end_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A variable of the environment, for one scope. nullptr takes it away.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old, had_ = true;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

}  // namespace heddle_tests
