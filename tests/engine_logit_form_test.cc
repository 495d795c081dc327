// What a logits_transform is taken for, and that what is taken for affine compiles as that.
#include "engine/logit_form.h"

#include "engine/launch_set.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

std::string spec_of(const std::string& code, const std::string& mask = "") {
  return fmt::format(R"({{"name": "v", "params": {{"a": {{"type": "f32", "default": 2}}, "n": {{"type": "i32", "default": 3}},
      "fixed": {{"type": "f32", "default": 0.5, "constant": true}}}},
    "tensors": {{"slopes": {{"dtype": "f32", "shape": ["num_qo_heads"]}}, "rows": {{"dtype": "bf16", "shape": ["num_qo_rows", "num_qo_heads"]}},
      "steps": {{"dtype": "u8", "shape": ["num_requests"]}}, "bias": {{"dtype": "f32", "shape": ["num_qo_heads", "kv_len"]}}}},
    "hooks": {{{}"logits_transform": "{}"}}}})", mask, code);
}

LogitForm form_of(const std::string& code) {
  return logit_form(Variant::from_json(spec_of(code), "test.json", {}), true);
}

bool is_affine(const std::string& code) { return form_of(code).is_affine; }

// "accepted", or why not.
std::string compiled(const Variant& variant) {
  const AttentionConfig config{.variant = variant.name, .num_qo_heads = 6, .num_kv_heads = 2, .head_dim = 64, .page_size = 16};
  KernelCache cache({.disk = false});
  NvrtcCompiler compiler;
  return sentence_of([&] {
    for (const Pipeline pipeline : {Pipeline::decode, Pipeline::append})
      build_kernel(cache, compiler, pipeline, variant, variant.resolve({}), config, "sm_90a", limits_of("sm_90a"));
  });
}

}  // namespace

TEST_CASE("an affine logits_transform: what is taken for one", "[engine][render]") {
  CHECK(is_affine("return logit;"));
  CHECK(is_affine("return logit - tensors.slopes[qo_head] * kv_distance;"));
  CHECK(is_affine("return (logit + params.n * (kv_distance - 0.5)) / params.a;  // a double, and an int"));
  CHECK(is_affine("return -(-logit * 2) + tensors.rows(q_row, qo_head) - q_pos;"));
  CHECK(is_affine("return logit + exp2(-8.0f * (qo_head + 1) / num_qo_heads) * kv_distance;"));
  CHECK(is_affine("float s = 0; for (int i = 0; i < params.n; ++i) { s += params.a; } return logit - s * kv_distance;"));
  CHECK(is_affine("auto s = tensors.steps[request]; if (s > 2) s = 2; return s * logit;"));
  CHECK(is_affine("return logit - logit / 4 + kv_distance * params.fixed - kv_distance;"));
}

TEST_CASE("an affine logits_transform: what isn't taken for one", "[engine][render]") {
  for (const char* code : {
           "return params.a;", "return kv_distance;", "return logit * logit;", "return logit * kv_distance;",
           "return logit - kv_distance * kv_distance;", "return 1 / logit;", "return logit + 1 / (1 + kv_distance);",
           "return logit - params.a * (q_pos - kv_pos);", "return logit + tensors.bias(qo_head, kv_pos);",
           "return logit + tensors.slopes[min(qo_head, kv_bit)];", "return logit - params.a * abs(kv_distance);",
           "return tanh(logit) - kv_distance;", "return kv_distance > 3 ? logit : 0;", "return logit > 0;", "return logit, 2;",
           "float x = logit; return x - kv_distance;", "float x = kv_distance; return logit - x;",
           "if (q_pos > 3) return logit; return logit - kv_distance;", "if (q_pos > 3) return logit;",
           "{ int i = 0; return logit; }", "return (float) -kv_distance + logit;", "return (float)logit;", "return float(logit);",
           "return logit - -params.a; ;", "int i = 2; return ++i * logit;", "int i = 2; return i-- * logit;",
           "return logit % 2;", "return static_cast<float>(logit);", "return logit - 'a';", "return logit << 1;"}) {
    INFO(code);
    CHECK_FALSE(is_affine(code));
  }
}

TEST_CASE("an affine logits_transform: whether the logit keeps its scale, and kv_distance stands in it", "[engine][render]") {
  const auto keeps = [](const std::string& code) { return form_of(code).keeps_scale; };
  CHECK(keeps("return logit;"));
  CHECK(keeps("return params.a * (2 - kv_distance) + (logit - 1);"));
  CHECK_FALSE(keeps("return -logit;"));
  CHECK_FALSE(keeps("return 1 - logit;"));
  CHECK_FALSE(keeps("return 1 - (2 + logit);"));
  CHECK_FALSE(keeps("return logit / 2;"));
  CHECK_FALSE(keeps("return 1 * (logit + kv_distance);"));
  CHECK_FALSE(keeps("return logit + logit;"));
  CHECK(form_of("return logit - (2 - kv_distance) / 3;").has_distance);
  CHECK_FALSE(form_of("return logit - q_pos;").has_distance);
}

TEST_CASE("a logits_transform with a max_distance: what it is of far keys", "[engine][render]") {
  VariantRegistry registry;
  const auto add = [&](const std::string& name, const std::string& code, const std::string& more = "") {
    registry.add(Variant::from_json(fmt::format(R"({{"name": "{}", {} "tensors": {{"bias": {{"dtype": "f32", "shape": ["kv_len"]}}}},
        "hooks": {{"logits_transform": {{"max_distance": 9, "code": "{}"}}}}}})", name, more, code), "held.json", {}));
    return logit_form(registry.at(name), true);
  };
  const LogitForm gathered = add("gathered", "return logit + tensors.bias.row(0)[q_pos - kv_pos];");
  CHECK((gathered.is_affine_far && gathered.far_keeps_scale && !gathered.far_has_distance && !gathered.is_affine));
  const LogitForm scaled = add("scaled", "float near = exp(-kv_distance); return near * logit;");
  CHECK((scaled.is_affine_far && !scaled.far_keeps_scale));
  CHECK_FALSE(add("bits", "return logit + kv_bit;").is_affine_far);
  CHECK_FALSE(add("squared", "return logit * logit + kv_pos;").is_affine_far);
  CHECK_FALSE(add("chosen", "return kv_distance > 3 ? logit : 0;").is_affine_far);
  CHECK_FALSE(add("summed", "return logit - kv_distance;", R"("use_softmax": false,)").is_affine_far);
  CHECK_FALSE(form_of("return logit - kv_distance;").is_affine_far);

  const auto composed = [&](const std::string& parts) {
    return logit_form(Variant::from_json(R"({"name": "all", "compose": [)" + parts + "]}", "all.json", registry), true);
  };
  CHECK((composed(R"("gathered", "alibi")").is_affine_far && composed(R"("gathered", "alibi")").far_has_distance));
  CHECK(composed(R"("relative_bias", "causal")").far_keeps_scale);
  CHECK_FALSE(composed(R"("gathered", "dense_bias")").is_affine_far);
  CHECK_FALSE(composed(R"("gathered", "custom_mask")").is_affine_far);
  CHECK_FALSE(composed(R"("gathered", "soft_cap")").is_affine_far);
}

TEST_CASE("a cap: a number times tanh of a number times the logit, in any order", "[engine][render]") {
  for (const char* code : {"return params.a * tanh(logit / params.a);", "return tanh(logit);", "return ((tanh(logit))) / 2;",
                           "return params.n * (0.5 * tanh((params.fixed) * (logit * 2) / params.n)) * 1e-1f;  // -"}) {
    INFO(code);
    CHECK(form_of(code).is_capped);
  }
  for (const char* code : {"return logit;", "return params.a * logit;", "return params.a * tanh(logit) + 1;", "return tanh(logit + params.a);",
                           "return -tanh(logit);", "return tanh(-logit);", "return params.a / tanh(logit);", "return tanh(params.a / logit);",
                           "return tanh(tanh(logit));", "return tanh(params.a) * logit;", "return tanh(logit) * tanh(params.a);",
                           "return sigmoid(logit) * 2;", "return tanh(sigmoid(logit));", "return tanh(logit) * logit;",
                           "return logit * params;", "return tanh(logit) * params.;", "return tanh;"}) {
    INFO(code);
    CHECK_FALSE(form_of(code).is_capped);
  }
}

TEST_CASE("the form of a composition is that of all parts; tanh goes first", "[engine][render]") {
  VariantRegistry registry;
  const auto form = [&](const std::string& parts) {
    const std::string json = R"({"name": "all", "compose": [)" + parts + "]}";
    return logit_form(Variant::from_json(json, "all.json", registry), true);
  };
  registry.add(Variant::from_json(R"({"name": "twice", "hooks": {"logits_transform": "return 2 * logit;"}})", "twice.json", {}));
  registry.add(Variant::from_json(R"({"name": "more", "hooks": {"logits_transform": "return logit + qo_head;"}})", "more.json", {}));
  CHECK(form(R"("alibi", "sliding_window")").keeps_scale);
  CHECK(form(R"("alibi_rule", "causal", "custom_mask")").has_distance);
  CHECK(form(R"("more", "alibi")").keeps_scale);
  CHECK(form(R"("more", "twice")").is_affine);
  CHECK_FALSE(form(R"("more", "twice")").keeps_scale);
  CHECK_FALSE(form(R"("more", "twice")").has_distance);
  CHECK_FALSE(form(R"("alibi", "soft_cap")").is_affine);
  CHECK_FALSE(form(R"("alibi", "dense_bias")").is_affine);
  CHECK(form(R"("soft_cap", "twice")").is_by_four);
  CHECK(form(R"("soft_cap", "twice")").is_capped);
  CHECK(form(R"("soft_cap", "sliding_window")").is_capped);
  CHECK_FALSE(form(R"("soft_cap", "alibi")").is_capped);
  registry.add(Variant::from_json(R"({"name": "again", "hooks": {"logits_transform": "return tanh(logit);"}})", "again.json", {}));
  CHECK(form(R"("soft_cap", "again")").is_by_four);
  CHECK_FALSE(form(R"("soft_cap", "again")").is_capped);
  CHECK_FALSE(form(R"("causal")").is_affine);
  const Variant masked = Variant::from_json(spec_of("return logit;", R"("logits_mask": "return kv_pos != 3;", )"), "test.json", {});
  CHECK(logit_form(masked, true).is_affine);
  CHECK_FALSE(logit_form(masked, false).is_affine);
}

TEST_CASE("an affine logits_transform compiles with numbers of every kind", "[engine][render]") {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  for (const char* code : {"return logit;", "return +logit - (+kv_distance);", "return 3 - logit / 2 - -kv_distance / tensors.steps[request];",
                           "return params.n * (logit + 0.5) / params.a + tensors.rows(q_row, qo_head);",
                           "return true * logit / params.fixed + (params.a + 1.5) * (kv_distance + q_pos) / params.n;",
                           "auto a = params.a; auto n = params.n; return a + logit - a * kv_distance - n + n * (n + kv_distance);"}) {
    INFO(code);
    const Variant variant = Variant::from_json(spec_of(code), "test.json", {});
    CHECK(logit_form(variant, true).is_affine);
    CHECK(compiled(variant) == "accepted");
  }
}

TEST_CASE("a cap compiles with numbers of every kind, and in a composition", "[engine][render]") {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  const char* const code = "return params.n * (0.5 * tanh((params.fixed) * (logit * 2) / params.n / params.a)) * 1e-1f * params.a;";
  const Variant variant = Variant::from_json(spec_of(code), "test.json", {});
  CHECK(logit_form(variant, true).is_capped);
  CHECK(compiled(variant) == "accepted");
  VariantRegistry registry;
  registry.add(Variant::from_json(R"({"name": "twice", "hooks": {"logits_transform": "return 2 * logit;"}})", "twice.json", {}));
  CHECK(compiled(Variant::from_json(R"({"name": "all", "compose": ["twice", "soft_cap", "tree_mask", "rope"]})", "all.json", registry)) ==
        "accepted");
}

TEST_CASE("a logits_transform with a max_distance compiles, alone and beside a slope", "[engine][render]") {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  VariantRegistry registry;
  registry.add(Variant::from_json(R"({"name": "faded", "hooks": {"logits_transform": {"max_distance": 40,
      "code": "const int n = kv_pos - q_pos; return logit / (1 + 0.02f * kv_distance) + n;"}}})", "faded.json", {}));
  registry.add(Variant::from_json(R"({"name": "both", "compose": ["relative_bias", "alibi", "faded"]})", "both.json", registry));
  for (const char* name : {"faded", "both"}) {
    CHECK(logit_form(registry.at(name), true).is_affine_far);
    CHECK(compiled(registry.at(name)) == "accepted");
  }
}
