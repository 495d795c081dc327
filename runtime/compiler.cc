#include "runtime/compiler.h"

#include "runtime/hash.h"

namespace heddle {

namespace {

// Does the line hold `word`, blanks and a colon? ptxas writes "error   :", the others "error:".
bool announces(std::string_view line, std::string_view word) {
  for (std::size_t at = line.find(word); at != std::string_view::npos;
       at = line.find(word, at + 1)) {
    const std::size_t next = line.find_first_not_of(' ', at + word.size());
    if (next != std::string_view::npos && line[next] == ':') return true;
  }
  return false;
}

// "spec.json:/hooks/logits_transform(1): error: ..." of NVRTC, "file:1:9: error: ..." of the host.
std::string_view first_error_line(std::string_view log) {
  std::string_view first;
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log = end == std::string_view::npos ? std::string_view{} : log.substr(end + 1);
    if (announces(line, "error") || announces(line, "fatal")) return line;
    if (first.empty()) first = line;
  }
  return first.empty() ? "the compiler said nothing" : first;
}

}  // namespace

std::string digest_of(std::span<const SourceFile> headers) {
  std::string hashes;
  for (const SourceFile& file : headers) hashes += hex(hash_fields({file.path, file.text}));
  return hex(hash_bytes(hashes));
}

void fail_compile(const CompileRequest& request, std::string_view compiler, std::string_view log) {
  fail(ErrorKind::compile_failed,
       "{}\nThis is the first error in {} ({}, for {}, with {}); the whole log:\n{}",
       first_error_line(log), request.name, request.unit_path, request.arch, compiler, log);
}

}  // namespace heddle
