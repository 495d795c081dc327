// From a spec to units: what the text holds, where a compiler's error points, and that a variant
// with everything compiles for GPUs and computes the reference's result on the CPU device.
#include "engine/kernel_source.h"
#include "engine/launch_set.h"
#include "engine/reference.h"
#include "runtime/host_compiler.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

bool has_compiler() {
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return false;
  }
  return true;
}

bool has_nvrtc() {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return false;
  }
  return true;
}

AttentionConfig config_of(const std::string& variant) {
  return {
      .variant = variant, .num_qo_heads = 6, .num_kv_heads = 2, .head_dim = 64, .page_size = 16};
}

Unit gpu_unit(const Variant& variant, const ParamValues& params,
              Pipeline pipeline = Pipeline::decode) {
  const AttentionConfig config = config_of(variant.name);
  return render_gpu_unit(pipeline, variant, variant.resolve(params), config,
                         tile_candidates(pipeline, config, limits_of("sm_90a"))[0]);
}

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++found;
  return found;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Variant variant_of(const std::string& json) { return Variant::from_json(json, "test.json", {}); }

Artifact compile_for(const Variant& variant, const std::string& arch, Pipeline pipeline,
                     const AttentionConfig& config) {
  KernelCache cache({.disk = false});
  NvrtcCompiler compiler;
  const KernelBuild built =
      build_kernel(cache, compiler, pipeline, variant, variant.resolve(config.constants), config,
                   arch, limits_of(arch));
  return *built.result.artifact;
}

// Decode and append, a request that is cut, rows that see little or nothing.
const StepLengths kMixed{{1, 3, 40, 0, 2}, {1500, 33, 130, 5, 0}};

constexpr const char* kTypo = R"({
  "name": "typo",
  "hooks": {
    "logits_transform": "return logt * 2;"
  }
})";

// Registers kTypo from a file and returns what making an Attention of it says.
std::string typo_sentence(Engine& engine, const std::string& dir) {
  write_file(dir + "/typo.json", kTypo);
  engine.register_variant_file(dir + "/typo.json");
  return sentence_of([&] { engine.attention(config_of("typo")); });
}

constexpr const char* kEverything = R"({
  "name": "everything",
  "params": {
    "octaves": {"type": "f32", "default": 6, "min": 0},
    "far": {"type": "i32", "default": 900, "min": 0},
    "sink_shift": {"type": "f32", "default": 0.5},
    "scale": {"type": "f32", "default": 1.25, "constant": true},
    "columns": {"type": "i32", "default": 32, "constant": true}
  },
  "tensors": {
    "slopes": {"dtype": "f32", "shape": ["num_qo_heads"]},
    "gate": {"dtype": "f32", "shape": ["num_qo_rows", "head_dim"]},
    "key_gain": {"dtype": "f16", "shape": ["num_kv_heads", "head_dim"]},
    "sinks": {"dtype": "f16", "shape": ["num_qo_heads"]},
    "value_mix": {"dtype": "bf16", "shape": ["head_dim"]},
    "bias": {"dtype": "bf16", "shape": ["num_requests", 64]},
    "open": {"dtype": "u8", "shape": ["num_requests", 64]},
    "flags": {"dtype": "u8", "shape": [64]},
    "shift": {"dtype": "i32", "shape": ["num_requests"]},
    "steps": {"dtype": "i32", "shape": ["num_kv_heads", 64]}
  },
  "mask": {"causal": true, "window_left": "far", "sink": 2},
  "hooks": {
    "query_transform": {"pair": "half_split", "code":
      "const auto angle = q_pos * exp2(-(dim % params.columns) * params.octaves / params.columns);\nreturn x * cos(angle) + (dim < params.columns ? -pair : pair) * sin(angle);"},
    "key_transform": {"pair": "half_split", "code":
      "const auto angle = kv_pos * exp2(-(dim % params.columns) * params.octaves / params.columns);\nconst auto turned = x * cos(angle) + (dim < params.columns ? -pair : pair) * sin(angle);\nreturn turned * (1 + tensors.key_gain(kv_head, dim));"},
    "value_transform": {"pair": "interleaved", "code":
      "return x + (dim % 2 ? -1 : 1) * pair * tensors.value_mix[dim];"},
    "logits_transform":
      "return params.scale * logit + tensors.slopes[qo_head] * (kv_pos - q_pos) * 0.05f + tensors.bias(request, kv_pos % 64) + 0.1f * tensors.steps(kv_head, kv_pos % 64);",
    "logits_mask":
      "return tensors.open(request, kv_pos % 64) != 0 || tensors.flags[q_pos % 64] == tensors.shift[request];",
    "output_transform": "return x * (1 + tensors.gate(q_row, dim));",
    "initial_state": "return tensors.sinks[qo_head] + params.sink_shift;"
  }
})";

}  // namespace

TEST_CASE("a rendered unit holds each hook once, with its spec's file and line",
          "[engine][render]") {
  const Variant gemma2 = VariantRegistry().at("gemma2");
  const HookCode& hook = gemma2.components.at(0).hooks.at(Hook::logits_transform);
  const Unit unit = gpu_unit(gemma2, {});
  const std::string placed =
      fmt::format("#line {} \"soft_cap.json:/hooks/logits_transform\"\n{}\n", hook.line, hook.code);
  CHECK(hook.line > 1);
  CHECK(count(unit.text, placed) == 1);
  CHECK(count(unit.text, hook.code) == 1);
  CHECK(unit.path == "gemma2_decode.cu");
  CHECK(unit.entry == "heddle_decode");
  CHECK(count(unit.text, "void __launch_bounds__") == 1);
  CHECK(count(unit.text, "templates/decode.cuh") == 1);
}

TEST_CASE("the numbering goes on right behind a snippet", "[engine][render]") {
  const Unit unit = gpu_unit(VariantRegistry().at("gemma2"), {});
  std::istringstream lines(unit.text);
  const std::string own = "\"" + unit.path + "\"";
  int number = 0, seen = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.starts_with("#line ") || line.find(own) == std::string::npos) continue;
    CHECK(std::stoi(line.substr(6)) == number + 1);
    ++seen;
  }
  CHECK(seen == 1);
}

TEST_CASE("rendering twice gives the same text, another pipeline another one", "[engine][render]") {
  const Variant gemma2 = VariantRegistry().at("gemma2");
  CHECK(gpu_unit(gemma2, {}).text == gpu_unit(gemma2, {}).text);
  CHECK(gpu_unit(gemma2, {}).text != gpu_unit(gemma2, {}, Pipeline::append).text);
  const std::vector<double> values = gemma2.resolve({});
  CHECK(render_host_unit(gemma2, values, "entry").text ==
        render_host_unit(gemma2, values, "entry").text);
}

TEST_CASE("batch_invariant is the planner's business: the units stay the same", "[engine][render]") {
  const Variant gemma2 = VariantRegistry().at("gemma2");
  AttentionConfig config{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const TileConfig tile{16, 64, 4, 3, 2, 0};
  const auto text = [&] {
    return render_gpu_unit(Pipeline::decode, gemma2, gemma2.resolve({}), config, tile).text;
  };
  const std::string plain = text();
  config.batch_invariant = true;
  CHECK(text() == plain);
}

TEST_CASE("a transform of the logit alone is a template, which the kernel calls with four of them", "[engine][render]") {
  const auto by_four = [](const std::string& code) {
    const std::string text = gpu_unit(variant_of(fmt::format(
        R"({{"name": "v", "params": {{"a": {{"type": "f32", "default": 2}}, "logit_scale": {{"type": "f32", "default": 2}}}},
            "hooks": {{"logits_transform": "{}"}}}})", code)), {}).text;
    CHECK(count(text, "template <class Logits>") == (count(text, "transforms_by_four = true") > 0 ? 2 : 0));
    return count(text, "transforms_by_four = true") == 1;
  };
  CHECK(by_four("return params.a * tanh(logit / params.a);"));
  CHECK(by_four("return 1.5f - sigmoid(-tanh(logit + 2)) / params.logit_scale;  // twice as wide"));
  CHECK_FALSE(by_four("return params.a * sigmoid(logit);  // no tanh"));
  CHECK_FALSE(by_four("return logit * tanh(logit);"));
  CHECK_FALSE(by_four("return tanh(params.a);"));
  CHECK_FALSE(by_four("return tanh(logit) - params.a * (q_pos - kv_pos);"));
  CHECK_FALSE(by_four("return tanh(logit) > 0 ? params.a : 0;"));
  CHECK_FALSE(by_four("float x = tanh(logit); return x;"));
  CHECK_FALSE(by_four("return exp(tanh(logit));"));
  CHECK_FALSE(count(gpu_unit(VariantRegistry().at("causal"), {}).text, "transforms_by_four = true"));
}

TEST_CASE("constants are in the text, run-time params are not", "[engine][render]") {
  const Variant variant = variant_of(R"({"name": "mixed", "params": {
      "slope": {"type": "f32", "constant": true}, "turns": {"type": "i32", "constant": true},
      "cap": {"type": "f32", "default": 7}},
    "hooks": {"logits_transform": "return params.slope * logit + params.turns * params.cap;"}})");
  const std::string text = gpu_unit(variant, {{"slope", -1.5}, {"turns", -3}}).text;
  CHECK(count(text, "static constexpr Real slope = -0x1.8p+0f;") == 1);
  CHECK(count(text, "static constexpr int turns = -3;") == 1);
  CHECK(count(text, "    RealParam cap;") == 1);
  CHECK(gpu_unit(variant, {{"slope", -1.5}, {"turns", -3}, {"cap", 99}}).text == text);
  CHECK(gpu_unit(variant, {{"slope", -1.25}, {"turns", -3}}).text != text);
  CHECK(gpu_unit(variant, {{"slope", -1.5}, {"turns", 4}}).text != text);
}

TEST_CASE("an error in a hook stands at the spec's own line: the host's compiler",
          "[engine][render]") {
  if (!has_compiler()) return;
  const TempDir dir;
  Engine engine = cpu_engine();
  const std::string sentence = typo_sentence(engine, dir.path());
  CHECK_THAT(first_line(sentence),
             Catch::Matchers::StartsWith("typo.json:/hooks/logits_transform:4:"));
  CHECK_THAT(first_line(sentence), contains("error: "));
  CHECK_THAT(first_line(sentence), contains("logt"));
  CHECK_THAT(sentence, contains("host unit of typo"));
  CHECK(typo_sentence(engine, dir.path()) == sentence);

  Attention good = engine.attention(config_of("gemma2"));
  CHECK(VariantStep(engine, good, kMixed).run(good).ok());
}

TEST_CASE("an error in a hook stands at the spec's own line: NVRTC", "[engine][render]") {
  if (!has_nvrtc()) return;
  const Variant typo = Variant::from_json(kTypo, "folder/typo.json", {});
  for (const Pipeline pipeline : {Pipeline::decode, Pipeline::append}) {
    const std::string sentence =
        sentence_of([&] { compile_for(typo, "sm_90a", pipeline, config_of("typo")); });
    CHECK(first_line(sentence) ==
          "typo.json:/hooks/logits_transform(4): error: identifier \"logt\" is undefined");
    CHECK_THAT(sentence, contains(fmt::format("{} of typo", name_of(pipeline))));
  }
  compile_for(VariantRegistry().at("gemma2"), "sm_90a", Pipeline::decode, config_of("gemma2"));
}

TEST_CASE("a mended spec of the same name takes the place of the wrong one", "[engine][render]") {
  if (!has_compiler()) return;
  const TempDir dir;
  Engine engine = cpu_engine();
  CHECK(typo_sentence(engine, dir.path()) != "accepted");
  add_spec(engine, R"({"name": "typo", "hooks": {"logits_transform": "return logit * 2;"}})");
  Attention mended = engine.attention(config_of("typo"));
  CHECK(VariantStep(engine, mended, kMixed).run(mended).ok());
}

TEST_CASE("composed params that clash keep their owner's name and their own value",
          "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "times", "params": {"by": {"type": "f32", "default": 1}},
                       "hooks": {"logits_transform": "return logit * params.by;"}})");
  add_spec(engine, R"({"name": "plus", "params": {"by": {"type": "f32", "default": 0}},
                       "hooks": {"logits_transform": "return logit + params.by * kv_pos;"}})");
  add_spec(engine, R"({"name": "both", "compose": ["times", "plus"]})");
  add_spec(
      engine,
      R"({"name": "single", "params": {"a": {"type": "f32", "default": 1}, "b": {"type": "f32", "default": 0}},
                       "hooks": {"logits_transform": "return logit * params.a + params.b * kv_pos;"}})");
  Attention both = engine.attention(config_of("both")),
            single = engine.attention(config_of("single"));
  VariantStep step(engine, both, kMixed), same(engine, single, kMixed);
  CHECK(step.run(both, {{"times.by", 1.5}, {"plus.by", -0.25}}).ok());
  CHECK(same.run(single, {{"a", 1.5}, {"b", -0.25}}).ok());
  CHECK(step.query().read_o(46) == same.query().read_o(46));
  CHECK(sentence_of([&] {
          VariantStep(engine, both, kMixed).run(both, {{"by", 1}});
        }) == "The variant both has more than one param by; say which: times.by, plus.by.");
}

TEST_CASE("a rotary pair behind another transform sees the partner as that one leaves it",
          "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "steps", "hooks": {"query_transform": "return (1 + dim % 3) * x;"}})");
  add_spec(
      engine,
      R"({"name": "turn", "hooks": {"query_transform": {"code": "return x - pair;", "pair": "half_split"}}})");
  add_spec(engine, R"({"name": "late", "compose": ["steps", "turn"]})");
  add_spec(engine, R"({"name": "written_out", "hooks": {"query_transform": {"pair": "half_split",
      "code": "return (1 + dim % 3) * x - (1 + (dim + head_dim / 2) % head_dim % 3) * pair;"}}})");
  Attention late = engine.attention(config_of("late")),
            written_out = engine.attention(config_of("written_out"));
  VariantStep step(engine, late, kMixed), same(engine, written_out, kMixed);
  CHECK(step.run(late).problem() == "");
  CHECK(same.run(written_out).problem() == "");
  CHECK(step.query().read_o(46) == same.query().read_o(46));
}

TEST_CASE("hooks on v and o go by head_dim_vo: pairs, means of squares, words, tensors", "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "first", "tensors": {"mix": {"dtype": "f32", "shape": ["head_dim_vo"]}},
      "hooks": {"value_transform": {"rms_norm": 0.001, "code": "return x * (1 + tensors.mix[dim]);"}}})");
  add_spec(engine, R"({"name": "second", "hooks": {
      "value_transform": {"pair": "half_split", "code": "return x + (dim < head_dim_vo / 2 ? -pair : pair) * head_dim / 64;"},
      "output_transform": "return x * (1 + 0.1f * dim / head_dim_vo);"}})");
  add_spec(engine, R"({"name": "values", "compose": ["first", "second"]})");
  for (const int head_dim_vo : {40, 128}) {
    AttentionConfig config = config_of("values");
    config.head_dim_vo = head_dim_vo;
    Attention attention = engine.attention(config);
    CHECK(VariantStep(engine, attention, kMixed).run(attention).ok());
  }
  add_spec(engine, R"({"name": "wide", "hooks": {"value_transform": {"pair": "half_split", "rotary_dim": 64,
      "code": "return x - pair;"}}})");
  AttentionConfig config = config_of("wide");
  config.head_dim_vo = 40;
  CHECK(sentence_of([&] { engine.attention(config); }) ==
        "The value_transform of variant wide has rotary_dim 64; it must be even and at most head_dim_vo, 40, or 0 for all "
        "of it.");
}

TEST_CASE("a rotary_dim that does not fit the head is refused when the Attention is made",
          "[engine][render]") {
  Engine engine = cpu_engine();
  const auto make = [&](double width) {
    AttentionConfig config = config_of("rope");
    config.constants["rotary_dim"] = width;
    return sentence_of([&] { engine.attention(config); });
  };
  CHECK(make(66) == "The query_transform of variant rope has rotary_dim 66; it must be even and at "
                    "most head_dim, 64, or 0 for all of it.");
  CHECK(make(33) == "The query_transform of variant rope has rotary_dim 33; it must be even and at "
                    "most head_dim, 64, or 0 for all of it.");
  add_spec(engine, R"({"name": "part", "hooks": {"query_transform": {"pair": "half_split",
      "rotary_dim": 32, "code": "return x - pair;"}}})");
  add_spec(engine, R"({"name": "two_widths", "compose": ["rope", "part"]})");
  CHECK(sentence_of([&] { engine.attention(config_of("two_widths")); }) ==
        "two_widths: the query_transform of rope has rotary_dim 0 and that of part has 32; a chain "
        "may use one.");
}

TEST_CASE("a variant with every hook, pair, tensor and param: GPU kernels", "[engine][render]") {
  if (!has_nvrtc()) return;
  const Variant variant = variant_of(kEverything);
  Artifact artifacts[4];
  tools::parallel_for(4, [&](int i) {
    artifacts[i] =
        compile_for(variant, i / 2 ? "sm_90a" : "sm_80", Pipeline(i % 2), config_of("everything"));
  });
  for (const Artifact& artifact : artifacts) CHECK(artifact.image.substr(1, 3) == "ELF");
}

TEST_CASE("a variant with every hook, pair, tensor and param: the CPU device", "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, kEverything);
  for (const int page_size : {0, 16}) {
    AttentionConfig config = config_of("everything");
    config.page_size = page_size;
    Attention attention = engine.attention(config);
    for (const KvLayout layout : {KvLayout::NHD, KvLayout::HND}) {
      if (page_size == 0 && layout != KvLayout::NHD) continue;
      VariantStep step(engine, attention, kMixed, layout);
      CHECK(step.run(attention, {{"octaves", 5}, {"far", 700}, {"sink_shift", -1}}).problem() ==
            "");
      CHECK(step.summary().partials[0] > 0);
    }
  }
}

TEST_CASE("without softmax, a free mask: rows that keep no key stay 0", "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "holes", "use_softmax": false, "hooks": {
      "logits_transform": "return sigmoid(logit);",
      "logits_mask": "return kv_pos % 3 == q_pos % 3 && q_pos % 4 != 1;",
      "output_transform": "return x + 1;"}})");
  Attention attention = engine.attention(config_of("holes"));
  VariantStep step(engine, attention, {{1, 1, 40, 2}, {1502, 1497, 130, 0}});
  CHECK(step.run(attention).problem() == "");
  CHECK(step.summary().partials[0] > 0);  // a row without keys, merged
}

TEST_CASE("an attention sink joins once, however a request is cut", "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "sink", "params": {"value": {"type": "f32", "default": 0}},
      "mask": {"causal": true}, "hooks": {"initial_state": "return params.value + qo_head;"}})");
  Attention attention = engine.attention(config_of("sink"));
  for (const double value : {-3.0, 4.0, 9.0}) {
    VariantStep again(engine, attention, {{1, 20, 1, 3}, {4000, 600, 0, 1}});
    CHECK(again.run(attention, {{"value", value}}).problem() == "");
    CHECK(again.summary().partials[0] > 0);
    CHECK(again.summary().joins[0] > 0);
  }
}

TEST_CASE("a run-time param without a default is asked for at plan and run", "[engine][render]") {
  if (!has_compiler()) return;
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "open", "params": {"gain": {"type": "f32", "min": 0.5}},
      "hooks": {"logits_transform": "return params.gain * logit;"}})");
  Attention attention = engine.attention(config_of("open"));
  VariantStep step(engine, attention, {{1}, {100}});
  CHECK(sentence_of([&] { step.run(attention); }) ==
        "The param gain of the variant open has no default; give it a value.");
  VariantStep again(engine, attention, {{1}, {100}});
  CHECK(again.run(attention, {{"gain", 2}}).ok());
}
