#include "tests/compositions.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/error.h"
#include "tools/random_case.h"

namespace heddle_tests {

using namespace heddle;

namespace {

std::string random_composition(tools::Random& random, const std::vector<std::string>& names, int index) {
  return fmt::format(R"({{"name": "{}", "compose": ["{}"]}})", composition_name(index),
                     fmt::join(tools::random_parts(random, names), "\", \""));
}

bool is_disagreement(std::string_view sentence) {
  constexpr std::string_view kReasons[] = {
      "the AND of two windows with sinks", "the AND of a range with a window", "the parts of a variant must agree",
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
