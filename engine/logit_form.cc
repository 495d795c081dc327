#include "engine/logit_form.h"

#include <algorithm>
#include <optional>

#include "variants/code_scanner.h"

namespace heddle {
namespace {

using Tokens = std::vector<CodeToken>;

template <std::size_t N>
bool contains(const std::string_view (&words)[N], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Which keys an expression is read for: any, or those whose kv_pos and kv_distance are the same, held to a distance.
enum class Keys { any, far };

bool is_of_keys(std::string_view word, Keys keys) {
  static constexpr std::string_view kWords[] = {"logit", "kv_byte", "kv_bit"}, kPlaces[] = {"kv_pos", "kv_distance"};
  return contains(kWords, word) || (keys == Keys::any && contains(kPlaces, word));
}

// One expression of params, numbers and the logit, which stands in it once.
struct Arithmetic {
  bool holds, has_tanh;
};

Arithmetic as_arithmetic(const Tokens& tokens) {
  static constexpr std::string_view kWords[] = {"return", "logit", "params", "tanh", "sigmoid"};
  int logits = 0, statements = 0, tanhs = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view text = tokens[i].text;
    const bool is_param = i >= 2 && tokens[i - 1].text == "." && tokens[i - 2].text == "params";
    if (tokens[i].kind == CodeToken::Kind::literal) return {};
    if (tokens[i].kind == CodeToken::Kind::word && !is_param && !contains(kWords, text)) return {};
    if (tokens[i].kind == CodeToken::Kind::punctuation && std::string_view("+-*/().;").find(text) == std::string_view::npos)
      return {};
    logits += text == "logit" && !is_param;
    tanhs += text == "tanh" && !is_param;
    statements += text == ";";
  }
  const bool is_return = !tokens.empty() && tokens.front().text == "return" && tokens.back().text == ";";
  return {is_return && statements == 1 && logits == 1, tanhs > 0};
}

// Reads such an expression as a product of params and numbers with the logit, or with tanh of one.
class CapReader {
 public:
  explicit CapReader(const Tokens& tokens) : tokens_(tokens) {}

  // How many tanh the logit goes through; nothing where it is not such a product.
  std::optional<int> read() {
    const bool has_logit = product();
    if (!holds_ || !has_logit || peek() != ";") return {};
    return tanhs_;
  }

 private:
  std::string_view peek() const { return at_ < tokens_.size() ? tokens_[at_].text : std::string_view(); }
  bool take(std::string_view text) {
    if (peek() != text) return false;
    ++at_;
    return true;
  }
  // A token that is neither the logit nor punctuation.
  bool take_value(CodeToken::Kind kind) {
    holds_ &= at_ < tokens_.size() && tokens_[at_].kind == kind;
    ++at_;
    return false;
  }

  // Each says whether the logit is in it.
  bool product() {
    bool has_logit = factor();
    while (holds_ && (peek() == "*" || peek() == "/")) {
      const bool divides = tokens_[at_++].text == "/";
      const bool is_logit = factor();
      holds_ &= !(divides && is_logit);
      has_logit |= is_logit;
    }
    return has_logit;
  }

  bool factor() {
    if (take("(")) return in_parentheses();
    if (take("logit")) return true;
    if (take("params")) {
      holds_ &= take(".");
      return take_value(CodeToken::Kind::word);
    }
    if (take("tanh") && take("(")) {
      const bool has_logit = in_parentheses();
      holds_ &= has_logit;
      ++tanhs_;
      return has_logit;
    }
    return take_value(CodeToken::Kind::number);
  }

  bool in_parentheses() {
    const bool has_logit = product();
    holds_ &= holds_ && take(")");
    return has_logit;
  }

  const Tokens& tokens_;
  std::size_t at_ = 1;  // behind "return"
  int tanhs_ = 0;
  bool holds_ = true;
};

// Where the only return of the code begins, if what stands in front of it says nothing of the key and always comes to it.
std::optional<std::size_t> last_return(const Tokens& tokens, Keys keys) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (is_of_keys(tokens[i].text, keys)) return {};
    if (tokens[i].text != "return") continue;
    if (i > 0 && tokens[i - 1].text != ";" && tokens[i - 1].text != "}") return {};
    return i;
  }
  return {};
}

// Reads an expression as what it is of the logit and kv_distance. Whatever else it says is the same for all keys, if it
// names nothing that depends on one; that the compiler judges.
class AffineReader {
 public:
  AffineReader(const Tokens& tokens, std::size_t begin, Keys keys) : tokens_(tokens), at_(begin), keys_(keys) {}

  // `EXPRESSION;` and the code's end.
  std::optional<LogitForm> read() {
    const Value value = sum();
    if (!holds_ || peek() != ";" || at_ + 1 != tokens_.size() || value.logits == 0) return {};
    return LogitForm{.is_affine = true, .keeps_scale = value.logits == 1 && !value.is_scaled, .has_distance = value.has_distance};
  }

 private:
  struct Value {
    int logits = 0;
    bool is_scaled = false;  // a logit in it has another factor than 1
    bool has_distance = false;
    bool is_uniform() const { return logits == 0 && !has_distance; }
  };

  std::string_view peek() const { return at_ < tokens_.size() ? tokens_[at_].text : std::string_view(); }
  bool take(std::string_view text) {
    if (peek() != text) return false;
    ++at_;
    return true;
  }
  Value refuse() {
    holds_ = false;
    return {};
  }

  Value sum() {
    Value value = product();
    while (holds_ && (peek() == "+" || peek() == "-")) {
      const bool is_minus = tokens_[at_++].text == "-";
      const Value next = product();
      value = {value.logits + next.logits, value.is_scaled || next.is_scaled || (is_minus && next.logits > 0),
               value.has_distance || next.has_distance};
    }
    return value;
  }

  Value product() {
    Value value = signed_value();
    while (holds_ && (peek() == "*" || peek() == "/")) {
      const bool divides = tokens_[at_++].text == "/";
      const Value next = signed_value();
      if (!next.is_uniform() && (divides || !value.is_uniform())) return refuse();
      const int logits = value.logits + next.logits;
      value = {logits, logits > 0, value.has_distance || next.has_distance};
    }
    return value;
  }

  Value signed_value() {
    // Two of a kind are a decrement or increment.
    if (peek() == "+" || peek() == "-") {
      const bool is_minus = tokens_[at_++].text == "-";
      if (peek() == "+" || peek() == "-") return refuse();
      Value value = primary();
      value.is_scaled |= is_minus && value.logits > 0;
      return value;
    }
    return primary();
  }

  Value primary() {
    if (peek() == "(") return in_parentheses();
    if (take("logit")) return {.logits = 1};
    if (keys_ == Keys::any && take("kv_distance")) return {.has_distance = true};
    if (at_ >= tokens_.size() || is_of_keys(peek(), keys_)) return refuse();
    if (tokens_[at_].kind == CodeToken::Kind::number) return ++at_, Value{};
    if (tokens_[at_].kind == CodeToken::Kind::word) return name();
    return refuse();
  }

  Value in_parentheses() {
    // A name alone may be a type, and what follows cast to it.
    if (at_ + 2 < tokens_.size() && tokens_[at_ + 1].kind == CodeToken::Kind::word && tokens_[at_ + 2].text == ")")
      return refuse();
    ++at_;
    const Value value = sum();
    return take(")") ? value : refuse();
  }

  // A name with its members, indices and arguments.
  Value name() {
    for (++at_; holds_;) {
      if (take(".")) {
        if (at_ >= tokens_.size() || tokens_[at_++].kind != CodeToken::Kind::word) return refuse();
      } else if (peek() == "(" || peek() == "[") {
        skip_brackets();
      } else {
        return {};
      }
    }
    return {};
  }

  // Brackets pair up: hooks are checked for that.
  void skip_brackets() {
    int depth = 0;
    do {
      const std::string_view text = peek();
      if (at_ >= tokens_.size() || is_of_keys(text, keys_)) holds_ = false;
      depth += text == "(" || text == "[" || text == "{";
      depth -= text == ")" || text == "]" || text == "}";
      ++at_;
    } while (holds_ && depth > 0);
  }

  const Tokens& tokens_;
  std::size_t at_;
  const Keys keys_;
  bool holds_ = true;
};

LogitForm as_affine(const Tokens& tokens, Keys keys) {
  const std::optional<std::size_t> begin = last_return(tokens, keys);
  if (!begin) return {};
  return AffineReader(tokens, *begin + 1, keys).read().value_or(LogitForm{});
}

// One part after the other.
LogitForm behind(const LogitForm& first, const LogitForm& second) {
  return {false, false, first.is_affine && second.is_affine, first.keeps_scale && second.keeps_scale,
          first.has_distance || second.has_distance};
}

}  // namespace

LogitForm logit_form(const Variant& variant, bool affine_beside_mask) {
  LogitForm affine{.is_affine = true, .keeps_scale = true}, far = affine;
  bool is_arithmetic = true, has_tanh = false, is_product = true, is_held = false;
  int tanhs = 0;
  for (const Component& part : variant.components) {
    const auto found = part.hooks.find(Hook::logits_transform);
    if (found == part.hooks.end()) continue;
    const Tokens tokens = scan_code("a hook", found->second.code);
    const Arithmetic arithmetic = as_arithmetic(tokens);
    is_arithmetic &= arithmetic.holds;
    has_tanh |= arithmetic.has_tanh;
    const std::optional<int> of_product = arithmetic.holds ? CapReader(tokens).read() : std::nullopt;
    is_product &= of_product.has_value();
    tanhs += of_product.value_or(0);
    const Keys keys = found->second.max_distance.empty() ? Keys::any : Keys::far;
    is_held |= keys == Keys::far;
    affine = behind(affine, keys == Keys::any ? as_affine(tokens, keys) : LogitForm{});
    far = behind(far, as_affine(tokens, keys));
  }
  // Only tanh gains by four logits at once.
  if (is_arithmetic && has_tanh) return {.is_by_four = true, .is_capped = is_product && tanhs == 1};
  if (!variant.has(Hook::logits_transform) || (variant.has(Hook::logits_mask) && !affine_beside_mask)) return {};
  if (affine.is_affine) return affine;
  if (!is_held || !far.is_affine || !variant.use_softmax || variant.has(Hook::logits_mask)) return {};
  return {.is_affine_far = true, .far_keeps_scale = far.keeps_scale, .far_has_distance = far.has_distance};
}

}  // namespace heddle
