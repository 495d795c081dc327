// Any words as a command line: of the verbs that only read and print, and the parsers of the
// others.
#include <fcntl.h>
#include <unistd.h>

#include "planner/lengths.h"
#include "tests/fuzz.h"
#include "tools/options.h"
#include "tools/verbs.h"

using namespace heddle;
using namespace heddle::tools;

namespace {

bool is_costly(std::string_view text) {
  // Names of files to write, and lengths that only cost memory: not for a fuzzer.
  for (const char* word : {"js", "sv", "/", "999", "000", "zipf", "uniform"})
    if (text.find(word) != text.npos) return true;
  std::size_t digits = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > 5) return true;
  }
  return false;
}

template <typename Call>
void answer(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    // Words are quoted as they are; main makes them readable.
    heddle_tests::promise(error.what()[0] != '\0', "an error says something");
  }
}

// What verbs print is not looked at; libFuzzer speaks on stderr.
[[maybe_unused]] const int kSilence = [] {
  const int nowhere = open("/dev/null", O_WRONLY);
  return dup2(nowhere, STDOUT_FILENO);
}();

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(heddle_tests::text_of(data, size));
  answer([&] { parse_heads(text); });
  answer([&] { parse_dtype(text); });
  answer([&] { parse_layout(text); });
  answer([&] { parse_params({text}); });
  if (is_costly(text)) return 0;
  answer([&] { parse_lengths(text); });
  answer([&] { parse_qo_lengths(text, 3); });
  static Engine engine({.device = DeviceKind::cpu});
  answer([&] { resolve_variant(engine, text); });
  Arguments words(1);
  for (const char c : text) {
    if (c == '\n')
      words.emplace_back();
    else
      words.back() += c;
  }
  const std::string verb = words[0];
  words.erase(words.begin());
  if (verb == "plan") answer([&] { plan(words); });
  if (verb == "variants") answer([&] { variants(words); });
  return 0;
}
