// Reading one spec: what is taken over, what the values of its params may be, where files fail.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "engine/error.h"
#include "tests/catch.h"
#include "variants/hook_code.h"
#include "variants/nearest.h"
#include "variants/variant.h"

using namespace heddle;

namespace {

Variant read(const std::string& text) { return Variant::from_json(text, "dir/a.json", {}); }

template <typename Call>
std::string sentence_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string many(int count, const std::string& list, const std::string& member) {
  std::string text = R"({"name": "many", ")" + list + R"(": {)";
  for (int i = 0; i < count; ++i) {
    text += (i > 0 ? ", \"p" : "\"p") + std::to_string(i) + "\": " + member;
  }
  return text + "}}";
}

constexpr const char* kWhole = R"({
  "name": "whole", "doc": "all keys",
  "params": {
    "scale": {"type": "f32", "default": -1.5, "min": -2, "max": 1e3, "doc": "a factor"},
    "left": {"type": "i32", "default": 7, "min": 0},
    "flag": {"type": "i32", "constant": true}
  },
  "tensors": {
    "slopes": {"dtype": "f32", "shape": ["num_qo_heads"], "doc": "one a head"},
    "bias": {"dtype": "bf16", "shape": ["num_qo_rows", "kv_len", 3, "16"]}
  },
  "hooks": {
    "query_transform": {"code": "return x + pair;", "pair": "half_split"},
    "key_transform": {
      "pair": "interleaved",
      "code": "return x - pair;"
    },
    "value_transform": "return x;",
    "logits_transform": "float y = params.scale * logit;\nreturn y + tensors.slopes(qo_head);",
    "logits_mask": "return kv_pos != params.flag;",
    "output_transform": "return x * dim;",
    "initial_state": "return 0;"
  },
  "mask": {"causal": true, "window_left": "left", "window_right": 3, "sink": 2},
  "use_softmax": true
})";

}  // namespace

TEST_CASE("a spec with every key is taken over whole", "[variants]") {
  const Variant variant = read(kWhole);
  CHECK(variant.name == "whole");
  CHECK(variant.doc == "all keys");
  CHECK(variant.file == "dir/a.json");
  CHECK(variant.json == kWhole);
  CHECK(variant.use_softmax);

  REQUIRE(variant.params.size() == 3);
  CHECK(variant.params[0].name == "scale");
  CHECK(variant.params[0].is_float);
  CHECK(variant.params[0].default_value == -1.5);
  CHECK(variant.params[0].min == -2.0);
  CHECK(variant.params[0].max == 1000.0);
  CHECK(variant.params[0].doc == "a factor");
  CHECK_FALSE(variant.params[1].is_float);
  CHECK(variant.params[2].constant);
  CHECK_FALSE(variant.params[2].has_default);

  REQUIRE(variant.tensors.size() == 2);
  CHECK(variant.tensors[0].dtype == DType::f32);
  std::vector<std::string> axes;
  for (const TensorAxis& axis : variant.tensors[1].shape) axes.push_back(axis.text);
  CHECK(axes == std::vector<std::string>{"num_qo_rows", "kv_len", "3", "16"});
}

TEST_CASE("a spec's hooks keep their code, their pair and their line", "[variants]") {
  const Variant variant = read(kWhole);
  REQUIRE(variant.components.size() == 1);
  const Component& own = variant.components[0];
  CHECK(own.name == "whole");
  CHECK(own.file == "a.json");
  CHECK(own.hooks.size() == kNumHooks);
  CHECK(own.hooks.at(Hook::query_transform).pair == RotaryPair::half_split);
  CHECK(own.hooks.at(Hook::query_transform).line == 13);
  CHECK(own.hooks.at(Hook::key_transform).line == 16);
  CHECK(own.hooks.at(Hook::logits_transform).line == 19);
  CHECK(own.hooks.at(Hook::value_transform).code == "return x;");
  CHECK(variant.pair(Hook::key_transform) == RotaryPair::interleaved);
  CHECK(variant.pair(Hook::value_transform) == RotaryPair::none);
  CHECK(variant.has(Hook::initial_state));
  CHECK_FALSE(read(R"({"name": "plain"})").has(Hook::initial_state));
}

TEST_CASE("bounds puts the values of the params into the declared mask", "[variants]") {
  const Variant variant = read(kWhole);
  const MaskBounds bounds = variant.bounds(variant.resolve({{"left", 5}, {"flag", 0}}));
  CHECK(bounds.causal == 1);
  CHECK(bounds.window_left == 5);
  CHECK(bounds.window_right == 3);
  CHECK(bounds.sink == 2);

  const Variant plain = read(R"({"name": "plain"})");
  const MaskBounds none = plain.bounds(plain.resolve({}));
  CHECK(none.causal == 0);
  CHECK(none.window_left == kUnbounded);
  CHECK(none.window_right == kUnbounded);
  CHECK(none.sink == 0);
}

TEST_CASE("resolve checks names, types and ranges", "[variants]") {
  const Variant variant = read(kWhole);
  const auto resolve = [&](const ParamValues& values) {
    return sentence_of([&] { variant.resolve(values); });
  };
  CHECK(variant.resolve({{"flag", -3}}) == std::vector<double>{-1.5, 7, -3});
  CHECK(resolve({}) == "The param flag of the variant whole has no default; give it a value.");
  CHECK(resolve({{"scal", 1}}) ==
        "The variant whole has no param \"scal\"; the nearest valid one is scale (allowed: scale, "
        "left, flag).");
  CHECK(
      resolve({{"flag", 1.5}}) ==
      "The param flag of the variant whole is 1.5, but it must be a whole number from -2147483648 "
      "to 2147483647.");
  CHECK(resolve({{"flag", 2147483648.0}}) ==
        "The param flag of the variant whole is 2147483648, but it must be a whole number from "
        "-2147483648 to 2147483647.");
  CHECK(resolve({{"flag", 0}, {"scale", std::numeric_limits<double>::quiet_NaN()}}) ==
        "The param scale of the variant whole is nan, but it must be a finite f32, at most "
        "3.4028235e+38 in size.");
  CHECK(resolve({{"flag", 0}, {"scale", -2.5}}) ==
        "The param scale of the variant whole is -2.5, but it must be at least -2.");
  CHECK(resolve({{"flag", 0}, {"scale", 1001}}) ==
        "The param scale of the variant whole is 1001, but it must be at most 1000.");
  CHECK(sentence_of([] {
          read(R"({"name": "none"})").resolve({{"cap", 1}});
        }) == "The variant none has no param \"cap\"; none are declared.");
}

TEST_CASE("a key of any characters is shown in a readable pointer", "[variants]") {
  CHECK(
      sentence_of([] { read(R"({"name": "a", "mask": {"a/b~\u0000\n": 1}})"); }) ==
      "dir/a.json, line 1: /mask/a~1b~0\\u0000\\n is not a key of a mask; the nearest valid one is "
      "causal (allowed: causal, window_left, window_right, sink, rows).");
}

TEST_CASE("arguments beyond the room for them are refused", "[variants]") {
  CHECK(read(many(256, "params", R"({"type": "f32"})")).params.size() == 256);
  CHECK(read(many(256, "params", R"({"type": "f32", "constant": true})")).params.size() == 256);
  CHECK(sentence_of([] { read(many(257, "params", R"({"type": "f32"})")); }) ==
        "dir/a.json, line 1: /params holds more than 256 keys.");
  const std::string tensor = R"({"dtype": "f32", "shape": ["kv_len"]})";
  CHECK(read(many(25, "tensors", tensor)).tensors.size() == 25);
  CHECK(
      sentence_of([&] { read(many(26, "tensors", tensor)); }) ==
      "dir/a.json, line 1: the spec: the arguments of many take 1040 bytes (26 tensors of 40, 0 "
      "run-time params of 4), but at most 1024 are allowed; make params constant or put them into "
      "a tensor.");
}

TEST_CASE("harmless code passes the checks of hooks", "[variants]") {
  HookScope scope;
  scope.params = {"cap"};
  scope.tensors = {"bias"};
  for (const char* code : {
           "return logit;",
           "// a \" quote, a ' and an open { in a comment\nreturn logit;",
           "/* # not a directive \\u */ return logit; // \xe2\x88\x92",
           "const char* s = \"}{)( # \\\" asm\"; return s[0] == '\\'' ? logit : '{';",
           "if (logit > 1'000.5e+3f) { return -logit; }\nreturn logit;",
           "float x = logit / params.cap; return x < 0 ? 1 : params . /* gap */ cap;",
           "struct P { float cup; } p{1}; return p.cup + tensors.bias(q_row, kv_pos);",
           "auto f = [&](float a) { return a % 2 > 1 ? a : 1; }; return f(logit);",
       }) {
    CHECK(sentence_of([&] { check_hook_code("here", code, scope); }) == "accepted");
  }
  scope.hook = Hook::key_transform;
  CHECK(sentence_of([&] {
          check_hook_code("here", "struct P { int q_pos; } p{1}; return p.q_pos;", scope);
        }) != "accepted");  // a word of the hooks is one even as somebody's member's name
}

TEST_CASE("a spec that is no readable file is an io error", "[variants]") {
  const VariantRegistry registry;
  CHECK(sentence_of([&] { Variant::from_file("/nowhere/a.json", registry); }) ==
        "The spec /nowhere/a.json cannot be opened: No such file or directory.");
  CHECK(sentence_of([&] { Variant::from_file("/tmp", registry); }) ==
        "The spec /tmp cannot be read; it must be a file that holds JSON.");
  CHECK(sentence_of([&] { Variant::from_file("/dev/zero", registry); }) ==
        "/dev/zero holds 1048577 bytes or more; a spec may hold at most 1048576.");
}

TEST_CASE("a spec is read from a file under the path that was given", "[variants]") {
  const std::string path = "variants_spec_test_" + std::to_string(std::random_device()()) + ".json";
  std::ofstream(path) << R"({"name": "filed", "hooks": {"logits_mask": "return true;"}})";
  const Variant variant = Variant::from_file(path, {});
  std::remove(path.c_str());
  CHECK(variant.name == "filed");
  CHECK(variant.file == path);
  CHECK(variant.components[0].file == path);
}

TEST_CASE("the built-in variants read and say where they come from", "[variants]") {
  const VariantRegistry registry;
  const std::vector<std::string> names = registry.names();
  for (const char* name : {"alibi", "causal", "custom_mask", "gemma2", "softmax"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  for (const std::string& name : names) {
    CHECK_FALSE(registry.at(name).doc.empty());
    CHECK(registry.at(name).file == "variants/" + name + ".json");
  }
  CHECK(registry.at("sigmoid").use_softmax == false);
  CHECK(sentence_of([&] { registry.at("sotf_cap"); }) ==
        "There is no variant \"sotf_cap\"; the nearest valid one is soft_cap (allowed: " +
            comma_list(registry.names()) + ").");
}
