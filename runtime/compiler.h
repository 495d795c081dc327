// What a compiler is to the cache: a rendered unit goes in, an image comes out.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/error.h"

namespace heddle {

// A text that units may include, under the path written in their #include lines.
struct SourceFile {
  std::string_view path;
  std::string_view text;
};

// Identifies the texts in a cache key. Hashing every header costs some 10 us, so the owner of the
// texts does it once and fills CompileRequest::headers_digest.
std::string digest_of(std::span<const SourceFile> headers);

struct CompileRequest {
  std::string name;       // for messages: "decode of gemma2"; not in the key
  std::string unit;       // the rendered text
  std::string unit_path;  // the name under which errors show it: "gemma2_decode.cu"
  std::span<const SourceFile> headers;
  std::string headers_digest;  // digest_of(headers); computed on every get() where left empty
  std::string arch;            // "sm_90a", or "cpu"
  std::string entry;           // its one extern "C" symbol
};

struct Artifact {
  std::string image;  // a cubin, or a shared object
  std::string log;    // warnings and notes
  double compile_ms = 0;
  int registers = 0;     // a thread; 0 where the compiler does not say
  int shared_bytes = 0;  // static
  int spill_bytes = 0;   // stores and loads
  int stack_bytes = 0;
};

// Thread-safe: the cache calls compile() from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Everything about the compiler that may change an image: kind, version, build, options. A part
  // of every key, asked for on every get(), so it must be cheap.
  virtual const std::string& identity() const = 0;

  // Throws Error(compile_failed); the message starts with the compiler's first error line.
  virtual Artifact compile(const CompileRequest& request) = 0;
};

// The exception for a refused unit: `first_line` (which names the spec's file, hook and line where
// the unit carries #line), then what was compiled, then the whole log.
[[noreturn]] void fail_compile(const CompileRequest& request, std::string_view compiler,
                               std::string_view log);

}  // namespace heddle
