#include "variants/spec_text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "variants/nearest.h"

namespace heddle {
namespace {

using Json = nlohmann::json;

// An input iterator that tells outside how far the parser has read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *read_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** read_;
};

// A key as a part of a pointer that errors show: ~0 and ~1 by the JSON pointer's rule, and no
// control characters.
std::string pointer_word(std::string_view key) {
  std::string out;
  for (const char c : escaped(key)) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(std::string_view text, std::string_view file)
      : file_(file), counted_(text.data()), read_(text.data()) {}

  const char** read() { return &read_; }
  SpecNode take() { return std::move(root_); }

  bool null() override { return leaf(SpecNode::Kind::null, {}); }
  bool boolean(bool value) override { return leaf(SpecNode::Kind::boolean, {}, 0, value); }
  bool number_integer(number_integer_t value) override {
    return leaf(SpecNode::Kind::number, std::to_string(value), static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return leaf(SpecNode::Kind::number, std::to_string(value), static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& literal) override {
    return leaf(SpecNode::Kind::number, literal, value);
  }
  bool string(string_t& value) override { return leaf(SpecNode::Kind::string, value); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(std::size_t) override { return open(SpecNode::Kind::object); }
  bool start_array(std::size_t) override { return open(SpecNode::Kind::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    SpecNode& object = open_.back();
    if (std::find(object.keys.begin(), object.keys.end(), name) != object.keys.end()) {
      fail(ErrorKind::invalid_spec,
           "{}, line {}: {}/{} is given twice; a key may stand only once in its object.", file_,
           line(), object.pointer, pointer_word(name));
    }
    if (object.keys.size() >= kMaxSpecMembers) {
      fail(ErrorKind::invalid_spec, "{}, line {}: {} holds more than {} keys.", file_, line(),
           object.pointer.empty() ? "the spec" : object.pointer, kMaxSpecMembers);
    }
    object.keys.push_back(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string& token, const Json::exception& error) override {
    if (error.id == 406) {  // a number beyond double
      fail(ErrorKind::invalid_spec,
           "{}, line {}: the number {} is too large; numbers must be finite.", file_, line(),
           token);
    }
    // "[json.exception...] parse error at line 3, column 7: syntax error while parsing ..."
    std::string words = error.what();
    const std::size_t at = words.find("line ");
    if (at != std::string::npos) words = words.substr(at);
    fail(ErrorKind::invalid_spec, "{}, {}; the text must be one JSON object.", file_, words);
  }

 private:
  // The parser may have read one character beyond a number, so the last one does not count.
  int line() {
    const char* end = std::max(counted_, read_ - (read_ > counted_ ? 1 : 0));
    line_ += static_cast<int>(std::count(counted_, end, '\n'));
    counted_ = end;
    return line_;
  }

  SpecNode make(SpecNode::Kind kind) {
    SpecNode node;
    node.kind = kind;
    node.line = line();
    if (open_.empty()) return node;
    const SpecNode& parent = open_.back();
    node.pointer = parent.pointer + "/" +
                   (parent.kind == SpecNode::Kind::object ? pointer_word(parent.keys.back())
                                                          : std::to_string(parent.items.size()));
    return node;
  }

  bool leaf(SpecNode::Kind kind, std::string text, double number = 0, bool boolean = false) {
    SpecNode node = make(kind);
    node.text = std::move(text);
    node.number = number;
    node.boolean = boolean;
    return place(std::move(node));
  }

  bool open(SpecNode::Kind kind) {
    if (open_.size() >= kMaxSpecDepth) {
      fail(ErrorKind::invalid_spec,
           "{}, line {}: the text nests deeper than {} levels; a spec needs 4.", file_, line(),
           kMaxSpecDepth);
    }
    open_.push_back(make(kind));
    return true;
  }

  bool close() {
    SpecNode node = std::move(open_.back());
    open_.pop_back();
    return place(std::move(node));
  }

  bool place(SpecNode node) {
    if (open_.empty())
      root_ = std::move(node);
    else
      open_.back().items.push_back(std::move(node));
    return true;
  }

  std::string file_;
  const char* counted_;
  const char* read_;
  int line_ = 1;
  std::vector<SpecNode> open_;
  SpecNode root_;
};

}  // namespace

const SpecNode* SpecNode::find(std::string_view key) const {
  const auto at = std::find(keys.begin(), keys.end(), key);
  return at == keys.end() ? nullptr : &items[static_cast<std::size_t>(at - keys.begin())];
}

SpecNode parse_spec_text(std::string_view text, std::string_view file) {
  if (text.size() > kMaxSpecBytes) {
    fail(ErrorKind::invalid_spec, "{} holds {} bytes or more; a spec may hold at most {}.", file,
         text.size(), kMaxSpecBytes);
  }
  TreeBuilder builder(text, file);
  Json::sax_parse(CountingIterator(text.data(), builder.read()),
                  CountingIterator(text.data() + text.size(), builder.read()), &builder);
  return builder.take();
}

std::string shown(const SpecNode& node) {
  switch (node.kind) {
    case SpecNode::Kind::null:
      return "null";
    case SpecNode::Kind::boolean:
      return node.boolean ? "true" : "false";
    case SpecNode::Kind::number:
      return node.text;
    case SpecNode::Kind::string:
      return in_quotes(node.text);
    case SpecNode::Kind::array:
      return node.items.empty() ? "an empty array" : "an array";
    case SpecNode::Kind::object:
      return node.items.empty() ? "an empty object" : "an object";
  }
  return "?";
}

}  // namespace heddle
