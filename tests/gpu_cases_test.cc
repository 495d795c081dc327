// Public bug reports tried on the GPU (tests/attention_cases.h), and what only a GPU can get wrong.
#include <optional>

#include "runtime/driver.h"
#include "tests/attention_cases.h"
#include "tests/catch.h"

using namespace heddle;
using namespace heddle_tests;

#define HEDDLE_TRY(function, name)               \
  TEST_CASE(name, "[gpu][cases]") {              \
    Engine engine;                               \
    CHECK(heddle_tests::function(engine) == ""); \
  }
HEDDLE_ATTENTION_CASES(HEDDLE_TRY)
HEDDLE_COMPILED_ATTENTION_CASES(HEDDLE_TRY)

TEST_CASE("B142 two streams with a workspace each, the same shape, at the same time",
          "[gpu][cases]") {
  Engine engine;
  const ProblemShape shape{.config = shape_of("causal", 8, 2, 128, 16),
                           .qo_lens = {1, 1, 40},
                           .kv_lens = {3000, 700, 65}};
  CaseRun a(engine, shape, 1), b(engine, shape, 2);
  const StreamHandle first = StreamHandle::create(), second = StreamHandle::create();
  for (int i = 0; i < 100; ++i) {
    a.attention.plan(a.problem.batch(), a.workspace, first.get());
    b.attention.plan(b.problem.batch(), b.workspace, second.get());
    a.attention.run(a.workspace, a.problem.tensors(), {}, first.get());
    b.attention.run(b.workspace, b.problem.tensors(), {}, second.get());
    if (i % 10 != 9) continue;
    first.synchronize(), second.synchronize();
    REQUIRE(a.problem.judge().what == "");
    REQUIRE(b.problem.judge().what == "");
  }
}

TEST_CASE("B133 an engine on device 1 while device 0 is current", "[gpu][cases]") {
  std::optional<Engine> one;
  try {
    one.emplace(EngineOptions{.ordinal = 1});
  } catch (const Error& error) {
    WARN("Nothing was tried: " << error.what());
    return;
  }
  Engine zero;
  const ProblemShape shape{
      .config = shape_of("causal", 8, 2, 128, 16), .qo_lens = {1, 40}, .kv_lens = {700, 65}};
  CaseRun on_one(*one, shape), on_zero(zero, shape);  // device 0 is current now
  CHECK(on_one.judge() == "");
  CHECK(on_zero.judge() == "");
  CHECK(on_one.judge() == "");
}
