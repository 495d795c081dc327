// Cases of windows, masks, caps, biases and sinks.
#include <cmath>

#include <fmt/format.h>

#include "tests/attention_cases.h"
#include "variants/variant.h"

namespace heddle_tests {

using namespace heddle;

namespace {

ProblemShape problem_of(const std::string& variant, std::vector<int> qo, std::vector<int> kv,
                        ParamValues params = {}) {
  return {.config = shape_of(variant, 4, 2, 64, 16),
          .params = std::move(params),
          .qo_lens = std::move(qo),
          .kv_lens = std::move(kv)};
}

void add(Engine& engine, const char* json) {
  engine.register_variant(Variant::from_json(json, "case.json", engine.variants()));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

Found b49(Engine& engine) {
  CaseRun run(engine, problem_of("dense_bias", {3, 40}, {43, 43}));
  const Tensor bias = run.problem.tensors().variant.at("bias");
  const Relaid odd(engine, bias, {43 * 43 + 1, 43, 1}, 1);
  return same_bits(run, [&](Tensors& t) { t.variant["bias"] = odd.tensor(); });
}

Found b64(Engine& engine) {
  return judge_all(engine,
                   {problem_of("tree_mask", {60}, {4096}), problem_of("tree_mask", {64}, {4096}),
                    problem_of("tree_mask", {100, 64}, {300, 64})});
}

Found b77(Engine& engine) {
  add(engine,
      R"({"name": "left_only", "params": {"left": {"type": "i32", "default": 333, "min": 0}}, "mask": {"window_left": "left"}})");
  const ProblemShape cut = problem_of("left_only", {300}, {1024}),
                     square = problem_of("left_only", {500}, {500});
  if (const Found found =
          judge_all(engine, {cut, square, problem_of("left_only", {1, 4}, {900, 1000})});
      !found.empty())
    return found;
  CaseRun decode(engine, problem_of("left_only", {1}, {1000}));
  if (const Found found = decode.judge(); !found.empty()) return found;
  return decode.is_cut() ? "" : "nothing was cut, so nothing was tried";
}

Found b80(Engine& engine) {
  constexpr int kKeys = 300;
  CaseRun causal(engine, problem_of("causal", {kKeys}, {kKeys}));
  if (const Found found = causal.judge(); !found.empty()) return found;
  for (const double window : {kKeys - 1, kKeys, 4096}) {
    CaseRun run(engine, problem_of("sliding_window", {kKeys}, {kKeys}, {{"window", window}}));
    if (const Found found = run.judge(); !found.empty()) return found;
    if (largest_difference(run.o(), causal.o()) > 1e-2)
      return fmt::format("a window of {} differs from causal", window);
  }
  CaseRun shorter(engine,
                  problem_of("sliding_window", {kKeys}, {kKeys}, {{"window", kKeys - 2.0}}));
  return shorter.judge();
}

Found b82(Engine& engine) {
  add(engine, R"({"name": "band", "mask": {"window_left": 32, "window_right": 64}})");
  CaseRun run(engine, problem_of("band", {300}, {20}));
  if (const Found found = run.judge(); !found.empty()) return found;
  // Row i stands at i - 280 and sees keys up to i - 216.
  const std::vector<double> lse = run.lse();
  for (int row = 0; row < 300; ++row)
    if (std::isfinite(lse[std::size_t(row) * 4]) != (row >= 216))
      return fmt::format("row {} has lse {}", row, lse[std::size_t(row) * 4]);
  return judge_all(engine, {problem_of("band", {129}, {129}), problem_of("band", {129}, {500})});
}

Found b83(Engine& engine) {
  AttentionConfig config = shape_of("sliding_window", 4, 2, 256, 16);
  config.sm_scale = 1;
  return judge_all(engine, {{.config = config,
                             .params = {{"window", 1023}},
                             .qo_lens = {8, 8},
                             .kv_lens = {1100, 1030}}});
}

Found b85(Engine& engine) {
  const ProblemShape long_one =
      problem_of("sliding_window", {1, 5, 130}, {3000, 1000, 700}, {{"window", 127}});
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    if (const Found found = CaseRun(engine, long_one, seed).judge(); !found.empty()) return found;
  return {};
}

// Random rows of head_dim 64 have logits of about 1: a cap of 0.5 bends all of them.
Found b86(Engine& engine) {
  CaseRun capped(engine, problem_of("soft_cap", {1, 40}, {300, 70}, {{"cap", 0.5}}));
  if (const Found found = capped.judge(); !found.empty()) return found;
  // plan() gets no cap: it decides no mask.
  capped.problem.poison_output();
  capped.attention.plan(capped.problem.batch(), capped.workspace);
  capped.run(capped.problem.tensors());
  if (const Verdict verdict = capped.problem.judge(); !verdict.ok) return verdict.what;
  CaseRun plain(engine, problem_of("softmax", {1, 40}, {300, 70}));
  if (const Found found = plain.judge(); !found.empty()) return found;
  return largest_difference(plain.o(), capped.o()) > 0.05 ? ""
                                                          : "the capped output is the plain one";
}

Found b88(Engine& engine) {
  for (const char* variant : {"soft_cap", "gemma2"})
    for (const int page_size : {0, 16})
      for (const bool invariant : {false, true})
        for (const bool portable : {false, true}) {
          ProblemShape shape =
              problem_of(variant, {1, 1, 40, 9, 70}, {40, 900, 65, 400, 70}, {{"cap", 1}});
          shape.config.page_size = page_size, shape.config.batch_invariant = invariant,
          shape.config.portable = portable;
          CaseRun run(engine, shape);
          if (const Found found = run.judge(); !found.empty()) return found;
          if (!run.is_cut() && !invariant) return "nothing was cut, so a path was not tried";
        }
  return {};
}

Found b91(Engine& engine) {
  return judge_all(engine, {problem_of("custom_mask", {3, 7, 1}, {13, 21, 67}),
                            problem_of("custom_mask", {40, 1}, {131, 9})});
}

Found b92(Engine& engine) {
  CaseRun narrow(engine, problem_of("sliding_window", {1, 40}, {700, 90}, {{"window", 16}}));
  if (const Found found = narrow.judge(); !found.empty()) return found;
  Problem wide(engine, problem_of("sliding_window", {1, 40}, {700, 90}, {{"window", 500}}), 9);
  plan_and_run(narrow.attention, narrow.workspace, wide);
  if (const Verdict verdict = wide.judge(); !verdict.ok) return verdict.what;
  return narrow.judge();
}

Found b94(Engine& engine) {
  return judge_all(engine,
                   {problem_of("custom_mask", {1}, {900}), problem_of("custom_mask", {70}, {900}),
                    problem_of("document", {70, 1}, {700, 400})});
}

Found b101(Engine& engine) {
  std::vector<ProblemShape> shapes;
  for (const int group : {5, 6, 10}) {
    ProblemShape shape = problem_of("attention_sink", {1, 20}, {300, 33});
    shape.config.num_qo_heads = 2 * group;
    shapes.push_back(shape);
  }
  return judge_all(engine, shapes);
}

Found b121(Engine& engine) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const float scale : {1 / std::sqrt(128.0f), 3 / std::sqrt(128.0f)}) {
      ProblemShape shape = problem_of("softmax", {1, 30}, {100, 70});
      shape.config.head_dim = 128, shape.config.sm_scale = scale;
      shape.config.q_dtype = shape.config.kv_dtype = dtype;
      if (const Found found = CaseRun(engine, shape).judge(); !found.empty()) return found;
    }
  return {};
}

// The bias ends with its last key; a read behind it is for a sanitizer to see.
Found b125(Engine& engine) {
  return judge_all(
      engine, {problem_of("dense_bias", {1}, {65}), problem_of("dense_bias", {1, 1}, {700, 701}),
               problem_of("dense_bias", {50}, {129})});
}

}  // namespace heddle_tests
