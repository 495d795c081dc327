// Shared prefixes on the GPU: every row against the reference, and a graph that serves batches with and
// without them.
#include "planner/plan_view.h"
#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/sharing.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("sharing: prefixes on the GPU", "[gpu][sharing]") {
  Engine engine;
  tools::Random random(17);
  int sharing = 0, nested = 0, in_parts = 0;
  constexpr int kHeadDims[] = {64, 128, 256};
  std::vector<AttentionConfig> configs;
  for (int i = 0; i < 24; ++i) {
    configs.push_back(sharing_config(random, kHeadDims[i % 3]));
    configs.back().portable = i % 4 == 3;
  }
  compile_all(engine, configs);
  for (const AttentionConfig& config : configs) {
    Attention attention = engine.attention(config);
    for (int batch = 0; batch < 2; ++batch) {
      Problem problem(engine, sharing_shape(random, config, {9000, 24, 300}), random.bits());
      Workspace workspace = attention.workspace(problem.maxima());
      plan_and_run(attention, workspace, problem);
      sharing += workspace.summary().shared_prefixes > 0;
      nested += workspace.summary().prefix_levels > 1;
      in_parts += PlanView(workspace.plan_bytes()).header().prefix_states > workspace.summary().prefix_levels;
      const Verdict verdict = problem.judge();
      INFO(verdict.what);
      CHECK(verdict.ok);
      const auto bits = problem.o_bits();
      problem.poison_output();
      attention.run(workspace, problem.tensors(), problem.shape().params);
      synchronize(nullptr);
      CHECK(problem.o_bits() == bits);
    }
  }
  CHECK(sharing >= 14);
  WARN(sharing << " of 48 batches share, " << nested << " in several levels, " << in_parts << " with prefixes in parts");
}

// Long enough that every level is worth it: 32 requests, of 16k keys for all, 4k for eights and 2k for pairs.
TEST_CASE("sharing: one graph serves steps of three levels, of one, and of none", "[gpu][sharing]") {
  Engine engine;
  ProblemShape shape{.config = {.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128,
                                .share_prefixes = true}};
  for (int r = 0; r < 32; ++r) {
    shape.qo_lens.push_back(1);
    shape.kv_lens.push_back(16384 + 4096 + 2048 + 100 + r);
    shape.shared_pages.push_back(r == 0 ? 0 : (r % 2 ? 16384 + 4096 + 2048 : r % 8 ? 16384 + 4096 : 16384) / 16);
  }
  Problem problem(engine, shape, 7);
  Attention attention = engine.attention(shape.config);
  Workspace workspace = attention.workspace(problem.maxima());
  Batch batch = problem.batch();
  const StreamHandle stream = StreamHandle::create();
  synchronize(nullptr);
  attention.plan(batch, workspace, stream.get());
  Graph::begin_capture(stream.get());
  attention.run(workspace, problem.tensors(), {}, stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  std::vector<std::uint16_t> bits[4];
  for (const auto& [pages, levels] : {std::pair{1408, 3}, {1024, 1}, {0, 0}, {1280, 2}, {1408, 3}, {0, 0}}) {
    const std::vector<std::int32_t> ids = ids_apart(problem.batch(), pages);
    batch.kv_indices = ids;
    attention.plan(batch, workspace, stream.get());
    INFO(pages << " pages");
    CHECK(workspace.summary().prefix_levels == levels);
    problem.poison_output();
    synchronize(nullptr);
    graph.launch(stream.get());
    stream.synchronize();
    if (bits[levels].empty()) {
      const Verdict verdict = problem.judge();
      INFO(verdict.what);
      CHECK(verdict.ok);
      bits[levels] = problem.o_bits();
    }
    CHECK(problem.o_bits() == bits[levels]);
  }
}
