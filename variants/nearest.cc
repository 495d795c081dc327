#include "variants/nearest.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace heddle {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // A long word is nonsense anyway: cut it, so that the cost stays small.
  word = word.substr(0, 100);
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) {
                                       return edit_distance(word, a) < edit_distance(word, b);
                                     });
  return best == candidates.end() ? std::string() : *best;
}

std::string comma_list(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string offer(std::string_view word, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "none are declared";
  return fmt::format("the nearest valid one is {} (allowed: {})", nearest(word, candidates),
                     comma_list(candidates));
}

std::string escaped(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string out;
  for (const char c : text.substr(0, kShown)) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return text.size() > kShown ? out + "..." : out;
}

std::string in_quotes(std::string_view text) { return "\"" + escaped(text) + "\""; }

}  // namespace heddle
