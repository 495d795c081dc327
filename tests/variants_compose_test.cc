// Composition: order, names, masks, and what cannot be put together.
#include <string>
#include <vector>

#include "engine/error.h"
#include "tests/catch.h"
#include "variants/compose.h"
#include "variants/variant.h"

using namespace heddle;

namespace {

std::string add(VariantRegistry& registry, const std::string& text) {
  try {
    registry.add(Variant::from_json(text, "a.json", registry));
  } catch (const Error& error) {
    return error.what();
  }
  return "added";
}

std::vector<std::string> component_names(const Variant& variant) {
  std::vector<std::string> names;
  for (const Component& component : variant.components) names.push_back(component.name);
  return names;
}

using Names = std::vector<std::string>;

constexpr const char* kOtherCap =
    R"({"name": "other", "params": {"cap": {"type": "f32", "default": 5}},
  "tensors": {"t": {"dtype": "f32", "shape": [1]}},
  "hooks": {"logits_transform": "return logit + params.cap;"}})";

}  // namespace

TEST_CASE("gemma2 is soft_cap, then sliding_window", "[variants]") {
  const VariantRegistry registry;
  const Variant& gemma2 = registry.at("gemma2");
  CHECK(component_names(gemma2) == Names{"soft_cap", "sliding_window"});
  CHECK(gemma2.components[0].file == "soft_cap.json");
  REQUIRE(gemma2.params.size() == 2);
  CHECK(gemma2.params[0].name == "cap");
  CHECK(gemma2.params[1].name == "window");
  CHECK(gemma2.components[1].params.at("window") == 1);
  const MaskBounds bounds = gemma2.bounds(gemma2.resolve({{"window", 100}}));
  CHECK(bounds.causal == 1);
  CHECK(bounds.window_left == 100);
  CHECK(bounds.window_right == kUnbounded);
  CHECK(gemma2.use_softmax);
}

TEST_CASE("params of one name are told apart by their component", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, kOtherCap) == "added");
  REQUIRE(
      add(registry, R"({"name": "both", "compose": ["soft_cap", "other", "sliding_window"]})") ==
      "added");
  const Variant& both = registry.at("both");
  REQUIRE(both.params.size() == 3);
  CHECK(both.params[0].name == "soft_cap.cap");
  CHECK(both.params[1].name == "other.cap");
  CHECK(both.params[2].name == "window");
  CHECK(both.components[1].params.at("cap") == 1);  // the snippet still says params.cap
  CHECK(both.resolve({{"other.cap", 9}}) == std::vector<double>{30, 9, 4096});
  CHECK_THROWS_WITH(both.resolve({{"cap", 9}}),
                    "The variant both has more than one param cap; say which: soft_cap.cap, "
                    "other.cap.");
}

TEST_CASE("tensors of one name are told apart by their component", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, kOtherCap) == "added");
  REQUIRE(add(registry, R"({"name": "twice", "compose": ["other"],
      "tensors": {"t": {"dtype": "i32", "shape": [2]}}})") == "added");
  const Variant& twice = registry.at("twice");
  REQUIRE(twice.tensors.size() == 2);
  CHECK(twice.tensors[0].name == "other.t");
  CHECK(twice.tensors[1].name == "twice.t");
}

TEST_CASE("a composition's own hooks, params and mask come last", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "own", "compose": ["soft_cap"],
      "params": {"right": {"type": "i32", "default": 2, "min": 0}},
      "mask": {"window_right": "right"},
      "hooks": {"logits_transform": "return logit + 1;"}})") == "added");
  const Variant& own = registry.at("own");
  CHECK(component_names(own) == Names{"soft_cap", "own"});
  CHECK(own.bounds(own.resolve({})).window_right == 2);
}

TEST_CASE("composing a composition flattens it and settles the names anew", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, kOtherCap) == "added");
  REQUIRE(add(registry, R"({"name": "both", "compose": ["soft_cap", "other"]})") == "added");
  REQUIRE(add(registry, R"({"name": "more", "compose": ["causal", "both", "sliding_window"]})") ==
          "added");
  const Variant& more = registry.at("more");
  CHECK(component_names(more) == Names{"causal", "soft_cap", "other", "sliding_window"});
  CHECK(more.params[0].name == "soft_cap.cap");
  CHECK(more.params[1].name == "other.cap");
  CHECK(more.components[3].params.at("window") == 2);
}

TEST_CASE("a mask's rows are given where any part says so, beside the others' bounds", "[variants]") {
  VariantRegistry registry;
  CHECK(registry.at("key_ranges").mask.rows_given);
  CHECK_FALSE(registry.at("causal").mask.rows_given);
  REQUIRE(add(registry, R"({"name": "both", "compose": ["sliding_window", "soft_cap", "key_ranges"]})") == "added");
  const Variant& both = registry.at("both");
  CHECK(both.mask.rows_given);
  CHECK(both.mask.causal);
  CHECK(both.bounds(both.resolve({{"window", 7}})).window_left == 7);
  REQUIRE(add(registry, R"({"name": "own", "compose": ["softmax"], "mask": {"rows": "given"}})") == "added");
  CHECK(registry.at("own").mask.rows_given);
}

TEST_CASE("masks are ANDed: the smallest bound of each kind holds", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "near", "mask": {"window_left": 10, "window_right": 4}})") ==
          "added");
  REQUIRE(add(registry, R"({"name": "narrow", "compose": ["sliding_window", "near"]})") == "added");
  const Variant& narrow = registry.at("narrow");
  CHECK(narrow.mask.window_left.size() == 2);
  CHECK(narrow.bounds(narrow.resolve({})).window_left == 10);
  CHECK(narrow.bounds(narrow.resolve({{"window", 3}})).window_left == 3);
  CHECK(narrow.bounds(narrow.resolve({})).window_right == 4);
  CHECK(narrow.bounds(narrow.resolve({})).causal == 1);
}

TEST_CASE("a sink stays with the windows of its own part", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "streaming",
      "params": {"sinks": {"type": "i32", "default": 4, "min": 0}},
      "mask": {"causal": true, "window_left": 7, "sink": "sinks"}})") == "added");
  REQUIRE(add(registry, R"({"name": "capped", "compose": ["soft_cap", "streaming", "causal"]})") ==
          "added");
  const Variant& capped = registry.at("capped");
  CHECK(capped.bounds(capped.resolve({{"sinks", 2}})).sink == 2);
  CHECK(
      add(registry, R"({"name": "two", "compose": ["capped", "sliding_window"]})") ==
      "a.json, line 1: /compose: capped declares a sink and sliding_window declares a window, but "
      "the AND of two windows with sinks is not one window with sinks; declare the sink and every "
      "window in one part.");
  CHECK(add(registry, R"({"name": "two", "compose": ["streaming"],
                          "mask": {"window_left": 5, "sink": 1}})") ==
        "a.json, line 1: /compose: streaming declares a sink and two declares a sink too, but the "
        "AND "
        "of two windows with sinks is not one window with sinks; declare the sink and every window "
        "in one part.");
}

TEST_CASE("only parts that say so, or need the softmax, decide on it", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "a", "compose": ["causal", "sigmoid"]})") == "added");
  CHECK_FALSE(registry.at("a").use_softmax);
  REQUIRE(add(registry, R"({"name": "b", "compose": ["a", "soft_cap"]})") == "added");
  CHECK_FALSE(registry.at("b").use_softmax);
  REQUIRE(add(registry, R"({"name": "c", "compose": ["soft_cap"], "use_softmax": false})") ==
          "added");
  CHECK_FALSE(registry.at("c").use_softmax);
  CHECK(
      add(registry, R"({"name": "d", "compose": ["b", "softmax"]})") ==
      "a.json, line 1: /compose: softmax sets use_softmax to true, but sigmoid sets use_softmax to "
      "false; the parts of a variant must agree.");
}

TEST_CASE("a variant has one initial_state", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "s", "hooks": {"initial_state": "return 0;"}})") == "added");
  CHECK(add(registry,
            R"({"name": "two", "compose": ["s"], "hooks": {"initial_state": "return 1;"}})") ==
        "a.json, line 1: /compose: s and two both have an initial_state; a variant may have one.");
}

TEST_CASE("a chain of transforms uses one kind of pair", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "half", "hooks": {
      "query_transform": {"code": "return pair;", "pair": "half_split"}}})") == "added");
  REQUIRE(add(registry, R"({"name": "scaled", "compose": ["half"], "hooks": {
      "query_transform": "return 2 * x;"}})") == "added");
  CHECK(registry.at("scaled").pair(Hook::query_transform) == RotaryPair::half_split);
  CHECK(
      add(registry, R"({"name": "mixed", "compose": ["half"], "hooks": {
      "query_transform": {"code": "return pair;", "pair": "interleaved"}}})") ==
      "a.json, line 1: /compose: the query_transform of half asks for the half_split pair and that "
      "of mixed for the interleaved pair; a chain may use one kind of pair.");
}

TEST_CASE("a composition of too many parts is refused", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "n1", "compose": ["causal"], "use_softmax": true})") ==
          "added");
  for (int i = 1; i < 15; ++i) {
    REQUIRE(add(registry, R"({"name": "n)" + std::to_string(i + 1) + R"(", "compose": ["n)" +
                              std::to_string(i) + R"("], "use_softmax": true})") == "added");
  }
  CHECK(registry.at("n15").components.size() == 16);
  CHECK(add(registry, R"({"name": "n16", "compose": ["n15"], "use_softmax": true})") ==
        "a.json, line 1: /compose: n16 is composed of 17 parts; at most 16 are allowed.");
}

TEST_CASE("specs may compose others whatever their order, but not in a circle", "[variants]") {
  VariantRegistry registry;
  const EmbeddedFile good[] = {{"c.json", R"({"name": "c", "compose": ["b", "causal"]})"},
                               {"b.json", R"({"name": "b", "compose": ["a"]})"},
                               {"a.json", R"({"name": "a"})"}};
  add_specs(good, registry);
  CHECK(component_names(registry.at("c")) == Names{"a", "causal"});

  const EmbeddedFile circle[] = {{"u.json", R"({"name": "u", "compose": ["causal", "v"]})"},
                                 {"v.json", R"({"name": "v", "compose": ["causal", "w"]})"},
                                 {"w.json", R"({"name": "w", "compose": ["v"]})"}};
  CHECK_THROWS_WITH(add_specs(circle, registry),
                    "v.json, line 1: /compose/1 is \"w\", which leads back to v; compositions may "
                    "not form a circle.");
}

TEST_CASE("replacing a variant leaves what was composed of it alone", "[variants]") {
  VariantRegistry registry;
  REQUIRE(add(registry, R"({"name": "soft_cap"})") == "added");
  CHECK(registry.at("soft_cap").params.empty());
  CHECK(registry.at("gemma2").params.size() == 2);
}
