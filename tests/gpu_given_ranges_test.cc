// Masks whose rows have their ranges given, on the GPU: against the reference, and one graph for masks that change from
// step to step.
#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/given_ranges.h"
#include "tools/options.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("given ranges: every kind beside every mask, on the GPU", "[gpu][given_ranges]") {
  Engine engine;
  std::vector<ProblemShape> shapes;
  std::vector<AttentionConfig> configs;
  for (const char* variant : kGivenVariants)
    for (const ProblemShape& shape : given_range_shapes(engine, variant)) {
      shapes.push_back(shape);
      configs.push_back(shape.config);
    }
  compile_all(engine, configs);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    CaseRun run(engine, shapes[i], i);
    CHECK(run.judge() == "");
    const auto bits = run.problem.o_bits();
    run.problem.poison_output();
    run.run(run.problem.tensors());
    CHECK(run.problem.o_bits() == bits);
  }
}

TEST_CASE("given ranges: NaN in keys that no row sees never matters, on the GPU", "[gpu][given_ranges]") {
  Engine engine;
  for (const char* variant : {"key_ranges", "causal+key_ranges"})
    for (const int page_size : {0, 1, 16, 64})
      for (const bool portable : {false, true})
        CHECK(unseen_keys_matter(engine, {.variant = tools::resolve_variant(engine, variant), .num_qo_heads = 4,
                                          .num_kv_heads = 2, .head_dim = 128, .page_size = page_size, .portable = portable}) ==
              "");
}

TEST_CASE("given ranges: one graph serves whatever ranges were planned", "[gpu][given_ranges]") {
  Engine engine;
  ProblemShape shape{.config = {.variant = tools::resolve_variant(engine, "causal+key_ranges"), .num_qo_heads = 8,
                                .num_kv_heads = 2, .head_dim = 128},
                     .qo_lens = {1, 300, 2}, .kv_lens = {3000, 700, 90}};
  Attention attention = engine.attention(shape.config);
  Problem problem(engine, shape, 3);
  Workspace workspace = attention.workspace(problem.maxima());
  const StreamHandle stream = StreamHandle::create();
  synchronize(nullptr);
  attention.plan(problem.batch(), workspace, stream.get());
  Graph::begin_capture(stream.get());
  attention.run(workspace, problem.tensors(), {}, stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  for (const int length : {64, 100, 700, 1}) {
    tools::KeyRanges ranges = tools::document_ranges(shape.qo_lens, shape.kv_lens, length);
    shape.ranges = ranges;
    Problem other(engine, shape, 3);  // the same values, other ranges: a judge of what the graph left
    plan_and_run(attention, workspace, other);
    INFO("documents of " << length);
    CHECK(other.judge().what == "");
    Batch batch = problem.batch();
    ranges.give(batch);
    attention.plan(batch, workspace, stream.get());
    problem.poison_output();
    synchronize(nullptr);
    graph.launch(stream.get());
    stream.synchronize();
    CHECK(problem.o_bits() == other.o_bits());
  }
}
