// Keys that are transformed once a run, ahead of append, on the GPU: against the reference with room for all, some and
// none of them, from layer to layer, and in one graph for plans with and without them.
#include <functional>

#include "runtime/driver.h"
#include "tests/case_run.h"
#include "tests/catch.h"
#include "tests/invariance.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

const char* const kSpecs[] = {
    R"({"name": "turned", "compose": ["rope", "causal"]})",
    R"({"name": "turned_pairs", "compose": ["rope_interleaved", "sliding_window"], "params": {"window": {"type": "i32", "default": 90}}})",
    R"({"name": "normed_and_turned", "compose": ["qk_norm", "llama31_rope", "causal"]})",
    R"({"name": "part_turned", "mask": {"causal": true}, "hooks": {"key_transform": {"pair": "half_split", "rotary_dim": 24,
        "code": "return dim < 12 ? x - pair : dim < 24 ? x + pair : 0.5f * pair;"}}})",
    R"({"name": "placed", "hooks": {"key_transform":
        "return x * (1.0f + 0.125f * kv_head) + 0.01f * (request + 1) * (kv_pos % 7) - 0.001f * (kv_len - qo_len) / 64;",
        "value_transform": "return x + 0.25f * (kv_pos % 3);"}})",
};

// Prompts of several query tiles, an extension of one, a decode, and keys without rows.
ProblemShape shape_with(const AttentionConfig& config) {
  return {.config = config, .qo_lens = {300, 5, 1, 150, 260, 0}, .kv_lens = {300, 650, 900, 1100, 260, 40},
          .want_lse = true};
}

std::vector<AttentionConfig> configs_of(Engine& engine) {
  std::vector<AttentionConfig> configs;
  for (const char* spec : kSpecs) {
    const Variant variant = Variant::from_json(spec, "transforms.json", engine.variants());
    engine.register_variant(variant);
    for (const auto& [page_size, head_dim, dtype] :
         {std::tuple{0, 64, DType::bf16}, std::tuple{1, 128, DType::f16}, std::tuple{16, 128, DType::bf16},
          std::tuple{48, 56, DType::bf16}, std::tuple{64, 256, DType::f16}})
      for (const bool portable : {false, true})
        configs.push_back({.variant = variant.name, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = head_dim,
                           .q_dtype = dtype, .kv_dtype = dtype, .page_size = page_size, .portable = portable});
  }
  return configs;
}

}  // namespace

TEST_CASE("transformed keys: room for all, some and none, against the reference", "[gpu][transformed_keys]") {
  Engine engine;
  const std::vector<AttentionConfig> configs = configs_of(engine);
  compile_all(engine, configs);
  for (const AttentionConfig& config : configs) {
    Attention attention = engine.attention(config);
    Problem problem(engine, shape_with(config), 11);
    std::vector<std::int64_t> transformed;
    for (const int room : {-1, 600, 0}) {
      Maxima maxima = problem.maxima();
      maxima.max_transformed_keys = room;
      Workspace workspace = attention.workspace(maxima);
      problem.poison_output();
      plan_and_run(attention, workspace, problem);
      INFO(config.variant << ", head_dim " << config.head_dim << ", page_size " << config.page_size << ", room " << room);
      CHECK(problem.judge().what == "");
      const auto bits = problem.o_bits();
      problem.poison_output();
      plan_and_run(attention, workspace, problem);
      CHECK(problem.o_bits() == bits);
      transformed.push_back(workspace.summary().transformed_keys);
    }
    CHECK(transformed[0] > transformed[1]);
    CHECK(transformed[1] > transformed[2]);
    CHECK(transformed[2] == 0);
  }
}

TEST_CASE("transformed keys: layers that share a workspace do not see each other's", "[gpu][transformed_keys]") {
  Engine engine;
  const AttentionConfig config{.variant = "rope", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 128};
  Attention attention = engine.attention(config);
  Problem first(engine, shape_with(config), 1), second(engine, shape_with(config), 2);
  Workspace workspace = attention.workspace(first.maxima());
  attention.plan(first.batch(), workspace, nullptr);
  for (int step = 0; step < 20; ++step)
    for (Problem* layer : {&first, &second}) attention.run(workspace, layer->tensors(), {}, nullptr);
  synchronize(nullptr);
  CHECK(first.judge().what == "");
  CHECK(second.judge().what == "");
}

TEST_CASE("transformed keys: one graph serves plans with and without them", "[gpu][transformed_keys]") {
  Engine engine;
  const AttentionConfig config{.variant = "rope", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 128};
  Attention attention = engine.attention(config);
  Problem problem(engine, shape_with(config), 3);
  Workspace workspace = attention.workspace(problem.maxima());
  const StreamHandle stream = StreamHandle::create();
  synchronize(nullptr);
  attention.plan(problem.batch(), workspace, stream.get());
  Graph::begin_capture(stream.get());
  attention.run(workspace, problem.tensors(), {}, stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  // One row each of the same requests: decode alone has work, over the same keys.
  const std::vector<std::int32_t> single_rows{0, 1, 2, 3, 4, 5, 5};
  for (const bool prompts : {true, false, true}) {
    Batch batch = problem.batch();
    if (!prompts) batch.qo_indptr = single_rows;
    const auto bits_of = [&](const std::function<void()>& run) {
      attention.plan(batch, workspace, stream.get());
      problem.poison_output();
      synchronize(nullptr);
      run();
      stream.synchronize();
      return problem.o_bits();
    };
    const auto launched = bits_of([&] { attention.run(workspace, problem.tensors(), {}, stream.get()); });
    if (prompts) CHECK(problem.judge().what == "");
    CHECK((workspace.summary().transformed_keys > 0) == prompts);
    CHECK(bits_of([&] { graph.launch(stream.get()); }) == launched);
  }
}

TEST_CASE("transformed keys: batch-invariant bits do not depend on the rest of the batch", "[gpu][transformed_keys]") {
  Engine engine;
  const AttentionConfig config{.variant = "rope", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 128,
                               .batch_invariant = true};
  InvarianceTally tally;
  try_probe(engine, {.config = config, .qo_len = 150, .kv_len = 900, .is_cut = false}, {8, 300, 1200}, 40, 3, tally);
  CHECK(tally.wrong == std::vector<std::string>{});
  CHECK(tally.batches == 40);
  CHECK(tally.same == tally.batches);
}
