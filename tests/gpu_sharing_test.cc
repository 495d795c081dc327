// Shared prefixes on the GPU: every row against the reference, and a graph that serves batches with and
// without them.
#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/sharing.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("sharing: prefixes on the GPU", "[gpu][sharing]") {
  Engine engine;
  tools::Random random(17);
  int sharing = 0;
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
}
