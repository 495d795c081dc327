// Every hook on both GPU pipelines, from users' specs, against the reference.
#include <cmath>

#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/problem.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

const char* const kSpecs[] = {
    R"({"name": "rotary", "mask": {"causal": true}, "hooks": {
        "query_transform": {"pair": "half_split", "code":
          "float a = 0.01f * q_pos * (dim % 32 + 1); return dim < 32 ? x * cos(a) - pair * sin(a) : x * cos(a) + pair * sin(a);"},
        "key_transform": {"pair": "half_split", "code":
          "float a = 0.01f * kv_pos * (dim % 32 + 1); return dim < 32 ? x * cos(a) - pair * sin(a) : x * cos(a) + pair * sin(a);"}}})",
    R"({"name": "mixed_values", "hooks": {
        "value_transform": {"pair": "interleaved", "code": "return x + 0.5f * pair;"},
        "output_transform": "return 2.0f * x + 0.01f * dim;"}})",
    R"({"name": "learned_sink", "mask": {"causal": true}, "hooks": {"initial_state": "return 0.5f * qo_head - 1.0f;"}})",
    R"({"name": "normed_rotary", "compose": ["qk_norm", "rope", "causal"]})",
    R"({"name": "part_rotary", "hooks": {"key_transform": {"pair": "half_split", "rotary_dim": 24, "code":
        "return dim < 12 ? x - pair : dim < 24 ? x + pair : 0.5f * pair;"}}})",
    R"({"name": "params_in_sums", "params": {"a": {"type": "f32", "default": 2.0}, "b": {"type": "f32", "default": 0.75}},
        "hooks": {"logits_transform":
          "float c = params.a; return logit / params.a * max(params.b, 0.5f) + min(params.a, params.b) / params.b - abs(params.b) / 4 + 2.0 / params.a - pow(params.b, c) / c;"}})",
    R"({"name": "logit_alone", "params": {"a": {"type": "f32", "default": 2.0}, "b": {"type": "f32", "default": 0.75},
                                          "n": {"type": "i32", "default": 3}},
        "mask": {"causal": true}, "hooks": {"logits_transform":
          "return params.n - params.b / (2.5f + sigmoid(1 - tanh(+logit) / params.a) * tanh(params.b)) * 4;"}})",
    R"({"name": "capped_twice", "params": {"a": {"type": "f32", "default": 2.0}}, "hooks": {
        "logits_transform": "return 5 * tanh(0.5 - params.a * tanh(-logit / 3));", "logits_mask": "return logit > -3.5f;"}})",
    R"({"name": "affine_scaled", "params": {"a": {"type": "f32", "default": 0.75}, "n": {"type": "i32", "default": 3}}, "hooks": {
        "logits_transform": "return 0.25 - (logit - params.n * (kv_distance - 0.5)) / -params.a / 4 + 0.125f * qo_head;"}})",
    R"({"name": "affine_of_rows", "mask": {"causal": true}, "tensors": {"bias": {"dtype": "f16", "shape": ["num_qo_rows", "num_qo_heads"]}},
        "hooks": {"logits_transform": "const auto b = tensors.bias(q_row, qo_head); return b + logit;", "logits_mask": "return logit < 2.5f;"}})",
    R"({"name": "affine_sum", "use_softmax": false, "mask": {"window_left": 100, "sink": 3}, "params": {"a": {"type": "f32", "default": 0.01}},
        "hooks": {"logits_transform": "return params.a * (logit + 1 - 0.001f * kv_distance);", "output_transform": "return x - 1.0f;"}})",
    R"({"name": "every_third", "hooks": {"logits_mask": "return kv_pos % 3 != q_pos % 3;"}})",
    R"({"name": "mask_of_new_keys", "hooks": {"logits_mask": {"keys": "new",
        "code": "return logit < 0.5f && (kv_pos + q_pos) % 3 != 0;"}}})",
    R"({"name": "plain_sum", "use_softmax": false, "mask": {"causal": true}, "hooks": {
        "logits_transform": "return sigmoid(logit - 4.0f);", "logits_mask": "return kv_pos >= 60;",
        "output_transform": "return x + 1.0f;"}})",
};

}  // namespace

TEST_CASE("hooks: every kind on decode and append, whole and cut, with rows that keep no key", "[gpu][hooks]") {
  Engine engine;
  std::vector<AttentionConfig> configs;
  for (const char* spec : kSpecs) {
    const Variant variant = Variant::from_json(spec, "hooks.json", engine.variants());
    engine.register_variant(variant);
    for (const int page_size : {0, 16})
      for (const DType dtype : {DType::bf16, DType::f16})
        configs.push_back({.variant = variant.name, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64,
                           .q_dtype = dtype, .kv_dtype = dtype, .page_size = page_size});
  }
  compile_all(engine, configs);
  for (const AttentionConfig& config : configs) {
    Attention attention = engine.attention(config);
    Problem problem(engine, {.config = config, .qo_lens = {1, 4, 70, 9, 2}, .kv_lens = {900, 65, 130, 3, 0},
                             .want_lse = attention.variant().use_softmax}, 7);
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    const Verdict verdict = problem.judge();
    INFO(verdict.what);
    CHECK(verdict.ok);
  }
}

// Far tiles on both sides, none, and all of them; with a window and sinks, beside a slope, and where a logit's scale changes.
TEST_CASE("hooks: logits held to a distance", "[gpu][hooks]") {
  Engine engine;
  for (const char* spec : {
           R"({"name": "held", "params": {"reach": {"type": "i32", "min": 0}}, "tensors": {"bias": {"dtype": "f32", "shape": ["num_qo_heads", "2 * reach + 1"]}},
               "hooks": {"logits_transform": {"max_distance": "reach", "code":
                 "return logit + tensors.bias.row(qo_head).from(params.reach)[kv_pos - q_pos];"}}})",
           R"({"name": "faded", "params": {"reach": {"type": "i32", "min": 0}}, "mask": {"causal": true},
               "hooks": {"logits_transform": {"max_distance": "reach", "code": "return logit / (1 + 0.02f * kv_distance);"}}})",
           R"({"name": "held_in_window", "compose": ["held", "streaming_llm"]})",
           R"({"name": "held_and_sloped", "compose": ["held", "alibi", "causal"]})"})
    engine.register_variant(Variant::from_json(spec, "held.json", engine.variants()));
  std::vector<AttentionConfig> configs;
  for (const char* variant : {"held", "faded", "held_in_window", "held_and_sloped"})
    configs.push_back({.variant = variant, .num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 64, .page_size = 16});
  compile_all(engine, configs);
  for (const AttentionConfig& config : configs) {
    Attention attention = engine.attention(config);
    for (const int reach : {0, 1, 130, 2000}) {
      ParamValues params{{"reach", reach}};
      if (config.variant == "held_in_window") params["window"] = 600, params["sinks"] = 300;
      Problem problem(engine, {.config = config, .params = params, .qo_lens = {40, 1, 300, 5}, .kv_lens = {1600, 300, 800, 0}}, 13);
      Workspace workspace = attention.workspace(problem.maxima());
      plan_and_run(attention, workspace, problem);
      const Verdict verdict = problem.judge();
      INFO(config.variant << " within " << reach << ": " << verdict.what);
      CHECK(verdict.ok);
    }
  }
}

// Slopes that reward distance: what a tile's logits have in common is then as large as it gets, and the weights lie there.
TEST_CASE("hooks: affine logits far from their rows", "[gpu][hooks]") {
  Engine engine;
  const Variant variant = Variant::from_json(
      R"({"name": "far", "params": {"slope": {"type": "f32", "default": 0.01}}, "mask": {"causal": true},
          "hooks": {"logits_transform": "return logit - params.slope * kv_distance;"}})", "far.json", engine.variants());
  engine.register_variant(variant);
  std::vector<AttentionConfig> configs;
  for (const bool portable : {false, true})
    configs.push_back({.variant = "far", .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64, .page_size = 16, .portable = portable});
  compile_all(engine, configs);
  for (const AttentionConfig& config : configs) {
    for (const double slope : {1.0, 1e-4, -1e-4, -0.01, -1.0}) {
      Attention attention = engine.attention(config);
      Problem problem(engine, {.config = config, .params = {{"slope", slope}}, .qo_lens = {40, 1, 3}, .kv_lens = {60000, 40000, 0}}, 11);
      Workspace workspace = attention.workspace(problem.maxima());
      plan_and_run(attention, workspace, problem);
      const Verdict verdict = problem.judge();
      INFO("slope " << slope << ": " << verdict.what);
      CHECK(verdict.ok);
    }
  }
}

// Logits of 1 to 12 and more in a row of random ones, so that tiles of one stream lie on both sides of what the wgmma
// kernel calls small; all alike, below zero too; and caps that are none, or turn the order of logits around.
TEST_CASE("hooks: logits beside a cap, small and large", "[gpu][hooks]") {
  Engine engine;
  engine.register_variant(Variant::from_json(
      R"({"name": "capped", "params": {"a": {"type": "f32"}, "b": {"type": "f32"}}, "mask": {"causal": true},
          "hooks": {"logits_transform": "return params.a * tanh(logit * params.b);"}})", "capped.json", engine.variants()));
  const AttentionConfig shared{.variant = "capped", .num_qo_heads = 4, .num_kv_heads = 2};
  std::vector<AttentionConfig> configs(4, shared);
  configs[0].head_dim = 64, configs[0].page_size = 16;
  configs[1].head_dim = 128, configs[1].q_dtype = configs[1].kv_dtype = DType::f16;
  configs[2].head_dim = 128, configs[2].page_size = 16, configs[2].batch_invariant = true;
  configs[3].head_dim = 256, configs[3].page_size = 1;
  compile_all(engine, configs);
  const auto check = [&](AttentionConfig config, float sm_scale, double a, double b, std::optional<std::array<float, 3>> constant = {}) {
    config.sm_scale = sm_scale;
    Attention attention = engine.attention(config);
    Problem problem(engine, {.config = config, .params = {{"a", a}, {"b", b}}, .qo_lens = {70, 330}, .kv_lens = {700, 1100},
                             .constant = constant}, 11);
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    const Verdict verdict = problem.judge();
    INFO(fmt::format("head_dim {}, scale {}, {} * tanh({} * logit)", config.head_dim, sm_scale, a, b) << verdict.what);
    CHECK(verdict.ok);
  };
  for (const AttentionConfig& config : configs) {
    const float one = 1 / std::sqrt(float(config.head_dim));  // logits of a deviation of 1
    for (const float deviation : {1.0f, 3.5f, 4.5f, 12.0f}) check(config, deviation * one, 30, 1.0 / 30);
    for (const float deviation : {1.0f, 6.0f, 7.5f}) check(config, deviation * one, 50, 0.02);
    for (const auto& [a, b] : {std::pair{29.0, 0.1}, {-40.0, -0.025}, {-40.0, 0.025}, {40.0, 0.0}, {200.0, 0.005}, {30.0, 10.0}})
      check(config, one, a, b);
    for (const float logit : {-40.0f, -3.0f, -0.0f, 13.4f, 13.6f, 200.0f})
      check(config, one, 30, 1.0 / 30, {{1.0f, logit * one, 0.75f}});
  }
}
