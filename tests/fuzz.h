// What the fuzz targets (fuzz_*.cc) share. Each one defines LLVMFuzzerTestOneInput: libFuzzer
// drives it where clang builds it, tests/fuzz_main.cc elsewhere. The rule is the same for all: an
// Error is an answer, anything else (another exception, a sanitizer's word, a broken promise) is a
// fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "engine/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace heddle_tests {

inline void promise(bool is_kept, const char* what) {
  if (is_kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// The sentence of an Error, which must be one: no NUL, no control characters but line ends, not
// empty.
inline void check_sentence(const heddle::Error& error) {
  const std::string_view said = error.what();
  promise(!said.empty(), "an error says something");
  for (const char c : said)
    promise(static_cast<unsigned char>(c) >= 32 || c == '\n' || c == '\t', "an error is readable");
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Numbers out of the input, 0 where it has ended.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  template <typename T>
  T take() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T) && left_ > 0; ++i, --left_)
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(*data_++) << (8 * i)));
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace heddle_tests
