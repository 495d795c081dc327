#include "variants/hook_code.h"

#include <algorithm>
#include <cctype>

#include "engine/error.h"
#include "variants/code_scanner.h"
#include "variants/nearest.h"

namespace heddle {
namespace {

using Tokens = std::vector<CodeToken>;

struct HookWord {
  std::string_view text;
  bool of_request = false;  // a request's own, or counted from its first key
};
constexpr HookWord kHookWords[] = {{"logit"}, {"x"}, {"dim"}, {"pair"}, {"request", true}, {"qo_head"}, {"kv_head"},
                                   {"q_pos", true}, {"kv_pos", true}, {"q_row"}, {"kv_distance", true}, {"kv_byte", true},
                                   {"kv_bit", true}, {"qo_len", true}, {"kv_len", true}, {"params"}, {"tensors"},
                                   {"num_qo_heads"}, {"num_kv_heads"}, {"group"}, {"head_dim"}, {"head_dim_vo"}};

const HookWord* hook_word(std::string_view text) {
  const auto* found = std::find_if(std::begin(kHookWords), std::end(kHookWords),
                                   [&](const HookWord& word) { return word.text == text; });
  return found == std::end(kHookWords) ? nullptr : found;
}

constexpr std::string_view kKeywords[] = {"alignas",       "alignof",     "and",
                                          "and_eq",        "asm",         "auto",
                                          "bitand",        "bitor",       "bool",
                                          "break",         "case",        "catch",
                                          "char",          "char8_t",     "char16_t",
                                          "char32_t",      "class",       "compl",
                                          "concept",       "const",       "consteval",
                                          "constexpr",     "constinit",   "const_cast",
                                          "continue",      "co_await",    "co_return",
                                          "co_yield",      "decltype",    "default",
                                          "delete",        "do",          "double",
                                          "dynamic_cast",  "else",        "enum",
                                          "explicit",      "export",      "extern",
                                          "false",         "float",       "for",
                                          "friend",        "goto",        "if",
                                          "inline",        "int",         "long",
                                          "mutable",       "namespace",   "new",
                                          "noexcept",      "not",         "not_eq",
                                          "nullptr",       "operator",    "or",
                                          "or_eq",         "private",     "protected",
                                          "public",        "register",    "reinterpret_cast",
                                          "requires",      "return",      "short",
                                          "signed",        "sizeof",      "static",
                                          "static_assert", "static_cast", "struct",
                                          "switch",        "template",    "this",
                                          "thread_local",  "throw",       "true",
                                          "try",           "typedef",     "typeid",
                                          "typename",      "union",       "unsigned",
                                          "using",         "virtual",     "void",
                                          "volatile",      "wchar_t",     "while",
                                          "xor",           "xor_eq"};

// Assembly would tie a variant to one device; a pragma operator is a directive in disguise.
constexpr std::string_view kForbiddenWords[] = {"asm", "__asm", "__asm__", "_Pragma", "__pragma"};

template <std::size_t N>
bool contains(const std::string_view (&words)[N], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

char partner_of(char closing) { return closing == ')' ? '(' : closing == ']' ? '[' : '{'; }

void check_braces(std::string_view where, const Tokens& tokens) {
  std::vector<CodeToken> open;
  for (const CodeToken& token : tokens) {
    if (token.kind != CodeToken::Kind::punctuation) continue;
    const char c = token.text[0];
    if (c == '(' || c == '[' || c == '{') open.push_back(token);
    if (c != ')' && c != ']' && c != '}') continue;
    if (open.empty()) {
      fail(ErrorKind::invalid_spec,
           "{} closes a \"{}\" on line {} of its code that it never opened; a hook is the body of "
           "one function and may not leave it.",
           where, c, token.line);
    }
    if (open.back().text[0] != partner_of(c)) {
      fail(ErrorKind::invalid_spec,
           "{} closes the \"{}\" of line {} of its code with \"{}\" on line {}; brackets must pair "
           "up.",
           where, open.back().text, open.back().line, c, token.line);
    }
    open.pop_back();
  }
  if (!open.empty()) {
    fail(ErrorKind::invalid_spec,
         "{} opens \"{}\" on line {} of its code and never closes it; brackets must pair up.",
         where, open.back().text, open.back().line);
  }
}

// params.NAME and tensors.NAME must be declared by the spec that says them.
void check_declared(std::string_view where, const CodeToken& list, const CodeToken& name,
                    const std::vector<std::string>& declared) {
  if (std::find(declared.begin(), declared.end(), name.text) != declared.end()) return;
  fail(ErrorKind::invalid_spec,
       "{} names {}.{} on line {} of its code, which is not among the spec's {}; {}.", where,
       list.text, name.text, name.line, list.text, offer(name.text, declared));
}

bool is_row_transform(Hook hook) {
  return hook == Hook::query_transform || hook == Hook::key_transform ||
         hook == Hook::value_transform;
}

// Words of the hooks that stand for nothing in this one: without this check they would read as -1.
void check_visible(std::string_view where, const CodeToken& word, const HookScope& scope) {
  const bool of_keys = scope.hook == Hook::key_transform || scope.hook == Hook::value_transform;
  const bool of_rows = scope.hook == Hook::query_transform ||
                       scope.hook == Hook::output_transform || scope.hook == Hook::initial_state;
  const bool of_logits = word.text == "kv_distance" || word.text == "kv_byte" || word.text == "kv_bit";
  if (of_keys && (word.text == "q_pos" || word.text == "q_row" || of_logits)) {
    fail(
        ErrorKind::invalid_spec,
        "{} names {} on line {} of its code, but a {} works on a key's row, which meets many query "
        "rows; use kv_pos.",
        where, word.text, word.line, name_of(scope.hook));
  }
  if (of_rows && (word.text == "kv_pos" || of_logits)) {
    fail(ErrorKind::invalid_spec,
         "{} names {} on line {} of its code, but the {} of a query row meets many keys; use "
         "q_pos.",
         where, word.text, word.line, name_of(scope.hook));
  }
  if (is_row_transform(scope.hook) && word.text == "pair" && scope.pair == RotaryPair::none) {
    fail(ErrorKind::invalid_spec,
         "{} names pair on line {} of its code without asking for one; write the hook as "
         "{{\"code\": ..., \"pair\": \"half_split\"}} or \"interleaved\".",
         where, word.line);
  }
}

bool is_member_access(const Tokens& tokens, std::size_t index) {
  if (index == 0) return false;
  const std::string_view before = tokens[index - 1].text;
  const std::string_view second = index > 1 ? tokens[index - 2].text : std::string_view();
  return before == "." || (before == ":" && second == ":") || (before == ">" && second == "-");
}

void check_words(std::string_view where, const Tokens& tokens, const HookScope& scope) {
  bool returns = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const CodeToken& token = tokens[i];
    if (token.kind != CodeToken::Kind::word) continue;
    if (contains(kForbiddenWords, token.text)) {
      fail(ErrorKind::invalid_spec,
           "{} says {} on line {} of its code; a hook is plain C++ for every device, without "
           "assembly or pragmas.",
           where, token.text, token.line);
    }
    returns = returns || token.text == "return";
    if (is_member_access(tokens, i)) continue;
    check_visible(where, token, scope);
    const bool names_member = i + 2 < tokens.size() && tokens[i + 1].text == "." &&
                              tokens[i + 2].kind == CodeToken::Kind::word;
    if (names_member && token.text == "params") {
      check_declared(where, token, tokens[i + 2], scope.params);
    }
    if (names_member && token.text == "tensors") {
      check_declared(where, token, tokens[i + 2], scope.tensors);
    }
  }
  if (!returns) {
    fail(ErrorKind::invalid_spec,
         "{} has no return; a hook is the body of a function that returns a {}.", where,
         scope.hook == Hook::logits_mask ? "bool" : "float");
  }
}

}  // namespace

bool is_reserved_word(std::string_view word) {
  return contains(kKeywords, word) || hook_word(word) != nullptr;
}

bool is_request_word(std::string_view word) {
  const HookWord* const found = hook_word(word);
  return found != nullptr && found->of_request;
}

bool is_c_identifier(std::string_view word) {
  const auto is_letter = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
  };
  const auto is_any = [&](char c) {
    return is_letter(c) || std::isdigit(static_cast<unsigned char>(c));
  };
  return !word.empty() && is_letter(word[0]) && std::all_of(word.begin(), word.end(), is_any) &&
         word.find("__") == std::string_view::npos;
}

void check_hook_code(std::string_view where, std::string_view code, const HookScope& scope) {
  check_code_characters(where, code);
  const Tokens tokens = scan_code(where, code);
  if (tokens.empty()) {
    fail(
        ErrorKind::invalid_spec,
        "{} is empty; it must be the body of a function such as \"return logit;\", or be left out.",
        where);
  }
  check_braces(where, tokens);
  check_words(where, tokens, scope);
}

}  // namespace heddle
