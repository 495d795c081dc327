// The one exception type of heddle and the one way to throw it.
//
// A message is a full sentence: what is wrong, the value found, what is allowed, what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace heddle {

enum class ErrorKind {
  invalid_spec,      // a variant's JSON, or a value given to one of its params
  invalid_argument,  // a batch, shape, stride, pointer, option or file that the user gave
  unsupported,       // valid, but not on this device, pipeline or build
  compile_failed,    // NVRTC or the host compiler refused the unit
  driver,            // a CUDA call failed
  io,                // a file could not be read or written
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// Throws Error with a formatted sentence.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heddle
