// Shared prefixes on the CPU device: the same results as without, from fewer keys; and what is refused.
#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/sharing.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("sharing: prefixes are read once, and every row is right", "[sharing]") {
  Engine engine = cpu_engine();
  tools::Random random(91);
  int sharing = 0;
  for (int i = 0; i < 40; ++i) {
    const AttentionConfig config = sharing_config(random, i % 2 ? 64 : 48);
    Attention attention = engine.attention(config);
    Problem problem(engine, sharing_shape(random, config, {700, 7, 90}), random.bits());
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    sharing += workspace.summary().shared_prefixes > 0;
    Verdict verdict = problem.judge();
    INFO(verdict.what);
    CHECK(verdict.ok);
    // States of prefixes are taken by the run that they were for: the next one finds its own.
    const auto bits = problem.o_bits();
    problem.poison_output();
    attention.run(workspace, problem.tensors(), problem.shape().params);
    CHECK(problem.o_bits() == bits);
    // A plan without page ids shares nothing, in the same workspace.
    Batch batch = problem.batch();
    batch.kv_indices = {};
    attention.plan(batch, workspace, nullptr, problem.shape().params);
    CHECK(workspace.summary().shared_prefixes == 0);
    problem.poison_output();
    attention.run(workspace, problem.tensors(), problem.shape().params);
    CHECK(problem.judge().ok);
  }
  CHECK(sharing >= 25);
}

TEST_CASE("sharing: what it cannot serve is refused by name", "[sharing]") {
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "by_request", "hooks": {"logits_transform": "return logit * (1 + request);"}})");
  const AttentionConfig good{.variant = "causal", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .page_size = 16,
                             .share_prefixes = true};
  CHECK_NOTHROW(engine.attention(good));
  const auto refusal = [&](auto change) {
    AttentionConfig config = good;
    change(config);
    try {
      engine.attention(config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  CHECK(refusal([](AttentionConfig& c) { c.variant = "sliding_window"; }) ==
        "Variant sliding_window has a window or sinks, so rows see different keys of a prefix; share_prefixes cannot serve "
        "it.");
  CHECK(refusal([](AttentionConfig& c) { c.variant = "by_request"; }) ==
        "A hook of variant by_request reads request, which differs among the requests of a shared prefix; share_prefixes "
        "cannot serve it.");
  CHECK(refusal([](AttentionConfig& c) { c.page_size = 0; }) ==
        "share_prefixes needs pages; this Attention is for ragged K/V (page_size 0).");
  CHECK(refusal([](AttentionConfig& c) { c.batch_invariant = true; }) ==
        "share_prefixes and batch_invariant exclude each other: what is shared depends on the rest of the batch.");
  CHECK(refusal([](AttentionConfig& c) { c.num_qo_heads = 40; }) ==
        "share_prefixes takes at most 16 query heads to a kv head; there are 20.");
}
