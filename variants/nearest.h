// What an error offers to somebody who mistyped a name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle {

// The candidate with the smallest edit distance (the first of equals); empty if there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The names of a spec's params or tensors, as candidates.
template <typename Named>
std::vector<std::string> names_in(const std::vector<Named>& list) {
  std::vector<std::string> names;
  for (const Named& item : list) names.push_back(item.name);
  return names;
}

// "a, b, c".
std::string comma_list(const std::vector<std::string>& words);

// The tail of a sentence about an unknown `word`: the nearest one and all that are allowed, or
// "none are declared".
std::string offer(std::string_view word, const std::vector<std::string>& candidates);

// The text as an error may show it: control characters, quotes and backslashes escaped (a NUL would
// end the sentence), cut where it is long.
std::string escaped(std::string_view text);
// The same in quotes.
std::string in_quotes(std::string_view text);

}  // namespace heddle
