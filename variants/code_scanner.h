// A hook's code as words, as far as its checks need: comments gone, literals whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle {

struct CodeToken {
  enum class Kind { word, number, literal, punctuation };  // punctuation: one character each
  Kind kind;
  std::string_view text;
  int line;  // of the code, from 1
};

// Refuses what would change how a compiler reads the text before it sees any token: NUL and other
// control characters, trigraphs, a backslash at the end of a line.
void check_code_characters(std::string_view where, std::string_view code);

// Refuses directives, digraphs, raw strings, unterminated comments and literals, and non-ASCII
// characters or a backslash outside both. Requires: check_code_characters has passed.
std::vector<CodeToken> scan_code(std::string_view where, std::string_view code);

}  // namespace heddle
