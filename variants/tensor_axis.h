// How long an axis of a variant's tensor is: a number, or a word of the batch or a param, scaled.
//
//   "num_qo_heads"   "16"   "kv_len / 8"   "2 * max_distance + 1"
//
// Divisions round up, so that "kv_len / 8" is as many bytes as hold a bit for every key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

struct TensorAxis {
  std::string text;  // as the spec says it
  std::string word;  // a shape word or a param's own name; empty: the axis is `plus` long
  int param = -1;    // index in Variant::params where the word is an i32 param
  std::int64_t times = 1, over = 1, plus = 0;

  // ceil(times * value / over) + plus.
  std::int64_t size(std::int64_t value) const { return (times * value + over - 1) / over + plus; }
};

// Sizes that the words stand for; -1: not known.
struct ShapeWords {
  std::int64_t num_qo_heads = -1, num_kv_heads = -1, head_dim = -1, head_dim_vo = -1, num_qo_rows = -1;
  std::int64_t num_requests = -1;
  std::int64_t qo_len = -1, kv_len = -1;  // the longest of the batch
  std::int64_t find(std::string_view word) const;
};
const std::vector<std::string>& shape_word_names();
bool is_shape_word(std::string_view word);

// Elements of an axis, -1 where the word is not known. `values` are Variant::resolve()'s.
std::int64_t axis_size(const TensorAxis& axis, const ShapeWords& words,
                       const std::vector<double>& values);

// [N *] WORD [/ N] [+ N], or N; nothing where the text has another form. The word is not looked up.
std::optional<TensorAxis> parse_axis(std::string_view text);

}  // namespace heddle
