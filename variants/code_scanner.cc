#include "variants/code_scanner.h"

#include <algorithm>
#include <cctype>

#include "engine/error.h"

namespace heddle {
namespace {

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
bool is_word_part(char c) { return is_word_start(c) || is_digit(c); }

int line_at(std::string_view code, std::size_t at) {
  return 1 + static_cast<int>(
                 std::count(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

class Scanner {
 public:
  Scanner(std::string_view where, std::string_view code) : where_(where), code_(code) {}

  std::vector<CodeToken> scan() {
    while (skip_blanks_and_comments()) {
      if (is_word_start(peek()))
        word();
      else if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1))))
        number();
      else if (peek() == '"' || peek() == '\'')
        literal();
      else
        punctuation();
    }
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < code_.size() ? code_[at_ + ahead] : '\0';
  }

  bool skip_blanks_and_comments() {
    while (at_ < code_.size()) {
      if (std::isspace(static_cast<unsigned char>(peek()))) {
        if (peek() == '\n') ++line_;
        ++at_;
      } else if (peek() == '/' && peek(1) == '/') {
        at_ = std::min(code_.find('\n', at_), code_.size());
      } else if (peek() == '/' && peek(1) == '*') {
        block_comment();
      } else {
        return true;
      }
    }
    return false;
  }

  void block_comment() {
    const std::size_t end = code_.find("*/", at_ + 2);
    if (end == std::string_view::npos) {
      refuse("opens a comment with \"/*\"", "close it with \"*/\"");
    }
    line_ += static_cast<int>(std::count(code_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         code_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end + 2;
  }

  void add(CodeToken::Kind kind, std::size_t begin) {
    tokens_.push_back({kind, code_.substr(begin, at_ - begin), line_});
  }

  void word() {
    const std::size_t begin = at_;
    while (is_word_part(peek())) ++at_;
    // A raw string may hold anything, so nothing after it could be judged.
    if (peek() == '"' && code_[at_ - 1] == 'R') {
      refuse("has a raw string", "a hook may hold plain literals only");
    }
    add(CodeToken::Kind::word, begin);
  }

  // A preprocessing number: digits, letters, dots, signed exponents, and ' between digits.
  void number() {
    const std::size_t begin = at_;
    while (true) {
      const char c = peek();
      const bool is_exponent = c == 'e' || c == 'E' || c == 'p' || c == 'P';
      if (is_exponent && (peek(1) == '+' || peek(1) == '-'))
        at_ += 2;
      else if (is_word_part(c) || c == '.')
        ++at_;
      else if (c == '\'' && is_word_part(peek(1)))
        ++at_;  // and not what follows, which may begin an exponent
      else
        break;
    }
    add(CodeToken::Kind::number, begin);
  }

  void literal() {
    const std::size_t begin = at_;
    const char quote = peek();
    for (++at_; peek() != quote; ++at_) {
      if (peek() == '\\') ++at_;
      if (at_ >= code_.size() || peek() == '\n') {
        at_ = begin;
        refuse(quote == '"' ? "opens a string with '\"'" : "opens a character with \"'\"",
               "close it on the same line");
      }
    }
    ++at_;
    add(CodeToken::Kind::literal, begin);
  }

  void punctuation() {
    const char c = peek();
    const char next = peek(1);
    if (c == '#' || (c == '%' && next == ':')) {
      refuse(c == '#' ? "has a \"#\"" : "has a \"%:\"",
             "preprocessor directives are not allowed in a hook");
    }
    if ((c == '<' && (next == '%' || next == ':')) || ((c == '%' || c == ':') && next == '>')) {
      refuse("has a digraph", "write the bracket or brace itself, or a space between the two");
    }
    if (c == '\\') refuse("has a \"\\\"", "it may stand only inside a literal");
    if (static_cast<unsigned char>(c) >= 0x80) {
      refuse("has a character beyond ASCII", "those may stand only in comments and strings");
    }
    ++at_;
    add(CodeToken::Kind::punctuation, at_ - 1);
  }

  [[noreturn]] void refuse(std::string_view found, std::string_view advice) const {
    fail(ErrorKind::invalid_spec, "{} {} on line {} of its code; {}.", where_, found, line_,
         advice);
  }

  std::string_view where_;
  std::string_view code_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<CodeToken> tokens_;
};

bool ends_line_after(std::string_view code, std::size_t at) {
  const std::size_t next = code.find_first_not_of(" \t", at + 1);
  return next == std::string_view::npos || code[next] == '\n';
}

}  // namespace

void check_code_characters(std::string_view where, std::string_view code) {
  for (std::size_t i = 0; i < code.size(); ++i) {
    const auto c = static_cast<unsigned char>(code[i]);
    if ((c < 0x20 && c != '\t' && c != '\n') || c == 0x7f) {
      fail(ErrorKind::invalid_spec,
           "{} has the control character 0x{:02x} on line {} of its code; only tab and newline are "
           "allowed.",
           where, c, line_at(code, i));
    }
    // Compilers also take blanks between the backslash and the newline.
    if (c == '\\' && ends_line_after(code, i)) {
      fail(ErrorKind::invalid_spec,
           "{} ends line {} of its code with a backslash; a hook may not continue lines.", where,
           line_at(code, i));
    }
    if (c == '?' && code.substr(i, 2) == "??" && i + 2 < code.size() &&
        std::string_view("=/'()!<>-").find(code[i + 2]) != std::string_view::npos) {
      fail(ErrorKind::invalid_spec,
           "{} has the trigraph \"{}\" on line {} of its code; write the character itself.", where,
           code.substr(i, 3), line_at(code, i));
    }
  }
}

std::vector<CodeToken> scan_code(std::string_view where, std::string_view code) {
  return Scanner(where, code).scan();
}

}  // namespace heddle
