// Any text as a hook's code. What passes must stay inside its function: a plain reading of the
// code, written apart from the scanner's, finds no directive and no brace that closes what it did
// not open.
#include <cctype>

#include "tests/fuzz.h"
#include "variants/hook_code.h"

using namespace heddle;

namespace {

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Steps over the comment, literal, word or number that begins at `at`; else over one character.
std::size_t step(std::string_view code, std::size_t at) {
  if (code.substr(at, 2) == "//") return std::min(code.find('\n', at), code.size());
  if (code.substr(at, 2) == "/*") return std::min(code.find("*/", at + 2), code.size() - 2) + 2;
  if (in_word(code[at])) {
    const bool number = std::isdigit(static_cast<unsigned char>(code[at])) != 0;
    for (++at; at < code.size(); ++at) {
      const bool separator =
          number && code[at] == '\'' && at + 1 < code.size() && in_word(code[at + 1]);
      const bool exponent = number && (code[at] == '+' || code[at] == '-') &&
                            std::string_view("eEpP").find(code[at - 1]) != code.npos;
      if (!in_word(code[at]) && !separator && !exponent && !(number && code[at] == '.')) break;
    }
    return at;
  }
  if (code[at] != '"' && code[at] != '\'') return at + 1;
  for (std::size_t i = at + 1; i < code.size(); ++i) {
    if (code[i] == '\\')
      ++i;
    else if (code[i] == code[at])
      return i + 1;
  }
  return code.size();
}

bool stays_inside(std::string_view code) {
  int depth = 0;
  bool line_begins = true;
  for (std::size_t at = 0, next; at < code.size(); at = next) {
    next = step(code, at);
    const char c = code[at];
    if (next > at + 1 && c == '/') continue;  // a comment is a blank
    if (next > at + 1) line_begins = false;
    if (next > at + 1) continue;
    if (c == '#' && line_begins) return false;
    if (c == '\n')
      line_begins = true;
    else if (c != ' ' && c != '\t' && c != '\r')
      line_begins = false;
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth < 0) return false;
  }
  return depth == 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view code = heddle_tests::text_of(data + 1, size - 1);
  try {
    check_hook_code("fuzz.json, line 1: /hooks/x", code,
                    {static_cast<Hook>(data[0] % kNumHooks),
                     static_cast<RotaryPair>(data[0] / 8 % 3),
                     {"cap"},
                     {"slopes"}});
    heddle_tests::promise(stays_inside(code), "a hook stays inside its function");
  } catch (const Error& error) {
    heddle_tests::check_sentence(error);
  }
  return 0;
}
