// Shared prefixes on the CPU device: the same results as without, from fewer keys; and what is refused.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/sharing.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("sharing: prefixes are read once, and every row is right", "[sharing]") {
  Engine engine = cpu_engine();
  tools::Random random(91);
  int sharing = 0, in_parts = 0, plans_of_levels[kMaxPrefixLevels + 1] = {};
  for (int i = 0; i < 60; ++i) {
    const AttentionConfig config = sharing_config(random, i % 2 ? 64 : 48);
    Attention attention = engine.attention(config);
    Problem problem(engine, sharing_shape(random, config, {1200, 10, 90}), random.bits());
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    sharing += workspace.summary().shared_prefixes > 0;
    ++plans_of_levels[workspace.summary().prefix_levels];
    in_parts += PlanView(workspace.plan_bytes()).header().prefix_states > workspace.summary().prefix_levels;
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
  CHECK(sharing >= 35);
  CHECK(in_parts >= 3);
  CHECK(plans_of_levels[2] + plans_of_levels[3] >= 10);
  CHECK(plans_of_levels[3] >= 3);
}

// Eight requests over two groups of four over four pairs.
static ProblemShape tree_shape(AttentionConfig config) {
  config.variant = "causal", config.num_qo_heads = 4, config.num_kv_heads = 2, config.head_dim = 64;
  config.page_size = 16, config.share_prefixes = true;
  return {.config = config, .qo_lens = {1, 2, 1, 1, 3, 1, 1, 2}, .kv_lens = std::vector<int>(8, 3300),
          .shared_pages = {0, 192, 128, 192, 64, 192, 128, 192}};
}

TEST_CASE("sharing: one workspace serves steps of three levels, of one, and of none", "[sharing]") {
  Engine engine = cpu_engine();
  Problem problem(engine, tree_shape({}), 7);
  Attention attention = engine.attention(problem.shape().config);
  Workspace workspace = attention.workspace(problem.maxima());
  Batch batch = problem.batch();
  std::vector<std::uint16_t> bits[4];
  // Pages that the plan may see in common: all, those of the outermost level, ...
  for (const auto& [pages, levels] : {std::pair{206, 3}, {64, 1}, {0, 0}, {128, 2}, {206, 3}, {0, 0}}) {
    const std::vector<std::int32_t> ids = ids_apart(problem.batch(), pages);
    batch.kv_indices = ids;
    attention.plan(batch, workspace);
    INFO(pages << " pages");
    CHECK(workspace.summary().prefix_levels == levels);
    for (int layer = 0; layer < 2; ++layer) {
      problem.poison_output();
      attention.run(workspace, problem.tensors());
      const Verdict verdict = problem.judge();
      INFO(verdict.what);
      CHECK(verdict.ok);
    }
    if (bits[levels].empty()) bits[levels] = problem.o_bits();
    CHECK(problem.o_bits() == bits[levels]);
  }
}

// Takes the new rows out of the pools, where NaN stays, and has append_kv bring them back. Heads and rows of the
// new arrays are dense.
static AppendTensors take_new_rows(const Problem& problem, std::vector<std::uint16_t> (&rows)[2]) {
  const Batch batch = problem.batch();
  const Tensors tensors = problem.tensors();
  const AttentionConfig& c = problem.shape().config;
  for (const bool is_v : {false, true}) {
    const Tensor& pool = is_v ? tensors.v : tensors.k;
    for (std::size_t r = 0; r < problem.shape().kv_lens.size(); ++r)
      for (int pos = problem.shape().kv_lens[r] - problem.shape().qo_lens[r]; pos < problem.shape().kv_lens[r]; ++pos)
        for (int head = 0; head < c.num_kv_heads; ++head) {
          const std::int64_t page = batch.kv_indices[std::size_t(batch.kv_indptr[r] + pos / c.page_size)];
          std::uint16_t* slot = static_cast<std::uint16_t*>(pool.data) + page * pool.strides[0] +
                                pos % c.page_size * pool.strides[1] + head * pool.strides[2];
          rows[is_v].insert(rows[is_v].end(), slot, slot + c.head_dim);
          std::fill_n(slot, c.head_dim, tools::kHalfNan);
        }
  }
  const auto rows_of = [&](std::vector<std::uint16_t>& from) {
    return tools::tensor_of(from.data(), c.kv_dtype, {batch.qo_indptr.back(), c.num_kv_heads, c.head_dim});
  };
  return {.new_k = rows_of(rows[0]), .new_v = rows_of(rows[1]), .k = tensors.k, .v = tensors.v,
          .kv_indices = tensors.kv_indices};
}

TEST_CASE("sharing: append_kv stores the new rows of requests that share prefixes", "[sharing][append_kv]") {
  Engine engine = cpu_engine();
  Problem problem(engine, tree_shape({.append_kv = AppendKv::copy}), 8);
  Attention attention = engine.attention(problem.shape().config);
  Workspace workspace = attention.workspace(problem.maxima());
  std::vector<std::uint16_t> rows[2];
  const AppendTensors append = take_new_rows(problem, rows);
  attention.plan(problem.batch(), workspace);
  CHECK(workspace.summary().prefix_levels == 3);
  attention.run(workspace, problem.tensors());
  CHECK(!problem.judge().ok);  // the new rows are not there yet
  problem.poison_output();
  attention.append_kv(workspace, append);
  attention.run(workspace, problem.tensors());
  const Verdict verdict = problem.judge();
  INFO(verdict.what);
  CHECK(verdict.ok);
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
  for (const char* word : {"q_pos", "kv_pos", "kv_distance", "kv_byte", "kv_bit", "qo_len", "kv_len"}) {
    add_spec(engine, fmt::format(R"({{"name": "by_{0}", "hooks": {{"logits_transform": "return logit + {0};"}}}})", word));
    CHECK(refusal([&](AttentionConfig& c) { c.variant = fmt::format("by_{}", word); }) ==
          fmt::format("A hook of variant by_{0} reads {0}, which differs among the requests of a shared prefix; "
                      "share_prefixes cannot serve it.", word));
  }
  CHECK(refusal([](AttentionConfig& c) { c.page_size = 0; }) ==
        "share_prefixes needs pages; this Attention is for ragged K/V (page_size 0).");
  CHECK(refusal([](AttentionConfig& c) { c.batch_invariant = true; }) ==
        "share_prefixes and batch_invariant exclude each other: what is shared depends on the rest of the batch.");
  CHECK(refusal([](AttentionConfig& c) { c.num_qo_heads = 40; }) ==
        "share_prefixes takes at most 16 query heads to a kv head; there are 20.");
}
