#include "variants/tensor_axis.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace heddle {
namespace {

// Reads an axis from left to right.
class AxisParser {
 public:
  explicit AxisParser(std::string_view text) : rest_(text) {}

  std::optional<TensorAxis> parse() {
    TensorAxis axis;
    if (number(axis.plus)) {
      if (done()) return axis;
      axis.times = std::exchange(axis.plus, 0);
      if (!sign('*')) return std::nullopt;
    }
    if (!word(axis.word)) return std::nullopt;
    if (sign('/') && !number(axis.over)) return std::nullopt;
    if (sign('+') && !number(axis.plus)) return std::nullopt;
    if (!done()) return std::nullopt;
    return axis;
  }

 private:
  void skip_blanks() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool done() {
    skip_blanks();
    return rest_.empty();
  }
  bool sign(char c) {
    if (done() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // From 1 to 2147483647: products with a length then fit 64 bits.
  bool number(std::int64_t& value) {
    skip_blanks();
    std::int32_t found = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), found);
    if (error != std::errc() || found < 1) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    value = found;
    return true;
  }
  bool word(std::string& value) {
    skip_blanks();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[length])) || rest_[length] == '_')) {
      ++length;
    }
    if (length == 0 || std::isdigit(static_cast<unsigned char>(rest_[0]))) return false;
    value = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

std::int64_t ShapeWords::find(std::string_view word) const {
  if (word == "num_qo_heads") return num_qo_heads;
  if (word == "num_kv_heads") return num_kv_heads;
  if (word == "head_dim") return head_dim;
  if (word == "head_dim_vo") return head_dim_vo;
  if (word == "num_qo_rows") return num_qo_rows;
  if (word == "num_requests") return num_requests;
  if (word == "qo_len") return qo_len;
  if (word == "kv_len") return kv_len;
  return -1;
}

const std::vector<std::string>& shape_word_names() {
  static const std::vector<std::string> names = {"num_qo_heads", "num_kv_heads", "num_qo_rows",
                                                 "num_requests", "qo_len",       "kv_len",
                                                 "head_dim",     "head_dim_vo"};
  return names;
}

bool is_shape_word(std::string_view word) {
  const std::vector<std::string>& names = shape_word_names();
  return std::find(names.begin(), names.end(), word) != names.end();
}

std::int64_t axis_size(const TensorAxis& axis, const ShapeWords& words,
                       const std::vector<double>& values) {
  if (axis.word.empty()) return axis.plus;
  const std::int64_t value =
      axis.param >= 0 ? static_cast<std::int64_t>(values[static_cast<std::size_t>(axis.param)])
                      : words.find(axis.word);
  return value < 0 ? -1 : axis.size(value);
}

std::optional<TensorAxis> parse_axis(std::string_view text) {
  std::optional<TensorAxis> axis = AxisParser(text).parse();
  if (axis) axis->text = text;
  return axis;
}

}  // namespace heddle
