#include "tests/compositions.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/error.h"
#include "tools/random.h"

namespace heddle_tests {

using namespace heddle;

namespace {

// Two to four different variants in any order, but qk_norm, which has to stand first.
std::string random_composition(tools::Random& random, std::vector<std::string> names, int index) {
  for (std::size_t i = names.size() - 1; i > 0; --i)
    std::swap(names[i], names[std::size_t(random.below(int(i) + 1))]);
  names.resize(std::size_t(2 + random.below(3)));
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name == "qk_norm"; });
  return fmt::format(R"({{"name": "{}", "compose": ["{}"]}})", composition_name(index),
                     fmt::join(names, "\", \""));
}

bool is_disagreement(std::string_view sentence) {
  constexpr std::string_view kReasons[] = {
      "the AND of two windows with sinks", "the parts of a variant must agree",
      "a variant may have one", "may use one kind of pair", "compose it once"};
  return std::any_of(std::begin(kReasons), std::end(kReasons), [&](std::string_view reason) {
    return sentence.find(reason) != std::string_view::npos;
  });
}

}  // namespace

std::string composition_name(int index) { return fmt::format("composition_{}", index); }

void add_compositions(VariantRegistry& registry) {
  const std::vector<std::string> names = registry.names();
  tools::Random random(2026);
  for (int index = 0; index < kCompositions;) {
    const std::string spec = random_composition(random, names, index);
    try {
      registry.add(Variant::from_json(spec, "composition.json", registry));
      ++index;
    } catch (const Error& error) {
      if (!is_disagreement(error.what())) throw;
    }
  }
}

}  // namespace heddle_tests
