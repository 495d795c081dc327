// Public bug reports tried on the CPU device (tests/attention_cases.h), and those that are about
// the engine's edge: what is refused, and what never waits for a compiler.
#include <type_traits>

#include <fmt/format.h>

#include "engine/kernel_source.h"
#include "runtime/host_compiler.h"
#include "tests/attention_cases.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

#define HEDDLE_TRY(function, name)               \
  TEST_CASE(name, "[engine][cases]") {           \
    Engine engine = cpu_engine();                \
    CHECK(heddle_tests::function(engine) == ""); \
  }
HEDDLE_ATTENTION_CASES(HEDDLE_TRY)

#define HEDDLE_TRY_COMPILED(function, name)             \
  TEST_CASE(name, "[engine][cases]") {                  \
    if (const auto why = HostCompiler::unavailable()) { \
      WARN("Nothing was tried: " << *why);              \
      return;                                           \
    }                                                   \
    Engine engine = cpu_engine();                       \
    CHECK(heddle_tests::function(engine) == "");        \
  }
HEDDLE_COMPILED_ATTENTION_CASES(HEDDLE_TRY_COMPILED)

namespace {

std::string run_with(CaseRun& run, const Tensors& tensors) {
  return sentence_of([&] { run.run(tensors); });
}

}  // namespace

TEST_CASE("B62 a tree mask shorter than the padded batch is refused", "[engine][cases]") {
  Engine engine = cpu_engine();
  CaseRun run(engine, {.config = shape_of("tree_mask", 4, 2, 64, 16),
                       .qo_lens = {26, 26, 26},
                       .kv_lens = {40, 50, 60}});
  run.plan();
  Tensors tensors = run.problem.tensors();
  tensors.variant["ancestors"].shape[0] = 52;
  CHECK(run_with(run, tensors) ==
        "Tensor \"ancestors\" of variant tree_mask has 52 elements on axis 0; num_qo_rows asks for "
        "at least 78.");
  CHECK(run_with(run, run.problem.tensors()) == "accepted");
}

TEST_CASE("B89 a bit mask of another shape is refused", "[engine][cases]") {
  Engine engine = cpu_engine();
  CaseRun run(engine,
              {.config = shape_of("custom_mask", 8, 4, 128, 16), .qo_lens = {10}, .kv_lens = {20}});
  run.plan();
  Tensors tensors = run.problem.tensors();
  tensors.variant["bits"].shape[1] = 2;  // 15 keys
  CHECK(run_with(run, tensors) ==
        "Tensor \"bits\" of variant custom_mask has 2 elements on axis 1; kv_len / 8 asks for at "
        "least 3.");
  tensors.variant["bits"].shape = {3, 10};  // transposed
  CHECK(run_with(run, tensors) ==
        "Tensor \"bits\" of variant custom_mask has 3 elements on axis 0; num_qo_rows asks for at "
        "least 10.");
}

TEST_CASE("B113 a cache whose pages are collapsed into rows is refused", "[engine][cases]") {
  Engine engine = cpu_engine();
  CaseRun run(engine,
              {.config = shape_of("softmax", 4, 1, 64, 32), .qo_lens = {1}, .kv_lens = {70}});
  run.plan();
  Tensors tensors = run.problem.tensors();
  tensors.k.shape = {tensors.k.shape[0] * 32, 1, 1, 64};
  CHECK(run_with(run, tensors) == "Tensor k has page_size = 1; it needs 32.");
}

TEST_CASE("B119 64-bit index arrays are no index arrays", "[engine][cases]") {
  using Indices = decltype(Batch::qo_indptr);
  static_assert(!std::is_convertible_v<std::vector<std::int64_t>&, Indices>);
  static_assert(!std::is_assignable_v<decltype(Tensors::kv_indices)&, const std::int64_t*>);
  const std::vector<std::int32_t> right{0, 1};
  CHECK(Indices(right).size() == 2);
}

TEST_CASE("B122 tensors of another dtype than the config's are refused", "[engine][cases]") {
  Engine engine = cpu_engine();
  CaseRun run(engine,
              {.config = shape_of("softmax", 4, 2, 64, 16), .qo_lens = {1}, .kv_lens = {70}});
  run.plan();
  for (Tensor Tensors::*member : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::o}) {
    Tensors tensors = run.problem.tensors();
    (tensors.*member).dtype = DType::f16;
    CHECK_THAT(run_with(run, tensors), contains("holds f16; this Attention was made for bf16."));
  }
}

TEST_CASE("B44 an output whose rows share memory is refused", "[engine][cases]") {
  Engine engine = cpu_engine();
  CaseRun run(engine,
              {.config = shape_of("softmax", 4, 2, 64, 16), .qo_lens = {1}, .kv_lens = {70}});
  run.plan();
  Tensors tensors = run.problem.tensors();
  tensors.o.strides[1] = 0;
  CHECK(run_with(run, tensors) ==
        "Tensor o has stride 0 on axis 1; its rows would overwrite each other.");
  tensors = run.problem.tensors();
  tensors.lse.strides[0] = 0;
  CHECK(run_with(run, tensors) ==
        "Tensor lse has stride 0 on axis 0; its rows would overwrite each other.");
  CHECK(run_with(run, run.problem.tensors()) == "accepted");
}

TEST_CASE("B106 tiles fit the shared memory of every architecture, and of smaller parts",
          "[engine][cases]") {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120"}) {
    for (const bool wgmma : {false, true}) {
      DeviceLimits limits = limits_of(arch);
      limits.wgmma = limits.wgmma && wgmma;
      for (const auto& [pipeline, max_qo_len, max_requests] :
           {std::tuple{Pipeline::decode, 1, 0}, {Pipeline::decode, 1, 1}, {Pipeline::decode, 4, 0}, {Pipeline::decode, 4, 1},
            {Pipeline::append, 0, 0}, {Pipeline::append, 16, 0}})
        for (int head_dim = 8; head_dim <= 256; head_dim += 8)
          for (const int head_dim_vo : {head_dim, 8, 64, 128, 256})
            for (const bool tile_hooks : {false, true})
              for (const TileConfig& tile :
                   tile_candidates(pipeline, {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = head_dim,
                                              .head_dim_vo = head_dim_vo, .max_qo_len = max_qo_len,
                                              .max_requests = max_requests}, limits, tile_hooks)) {
                CHECK(tile.smem_bytes <= limits.shared_per_block);
                CHECK(tile.ctas_per_sm * (tile.smem_bytes + 1024) <=
                      limits.shared_per_sm);  // 1 KiB is the driver's
              }
    }
  }
  const DeviceLimits small{.num_sms = 40, .shared_per_block = 65536, .shared_per_sm = 65536};
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const std::string said = sentence_of([&] {
      for (const TileConfig& tile :
           tile_candidates(Pipeline::append, {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = head_dim}, small))
        CHECK(tile.smem_bytes <= 65536);
    });
    CHECK((said == "accepted" ||
           said ==
               fmt::format("No append tile for head_dim {} fits into 65536 bytes of shared memory.",
                           head_dim)));
  }
}

TEST_CASE("B164 the target follows from the device alone", "[engine][cases]") {
  const Environment stale("TORCH_CUDA_ARCH_LIST", "5.2");
  CHECK(arch_of(8, 9) == "sm_89");
  CHECK(arch_of(9, 0) == "sm_90a");
  CHECK(arch_of(12, 1) == "sm_121");
  CHECK(arch_of(8, 0) == "sm_80");
}

TEST_CASE("B166 after attention() nothing is compiled, whatever the lengths", "[engine][cases]") {
  Engine engine({.device = DeviceKind::cpu, .use_disk_cache = false});
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was tried: " << *why);
    return;
  }
  add_spec(engine, R"({"name": "steeper", "hooks": {"logits_transform": "return 2 * logit;"}})");
  Attention attention = engine.attention(shape_of("steeper", 4, 2, 64, 16));
  CHECK(attention.kernels().at(0).origin == "compiled");
  Workspace workspace =
      attention.workspace({.max_requests = 3, .max_qo_rows = 100, .max_kv_tokens = 4096});
  const Environment no_compiler("HEDDLE_CXX", "/no/such/compiler");
  for (int length : {1, 63, 64, 65, 900}) {
    Problem problem(
        engine,
        {.config = attention.config(), .qo_lens = {1, length % 50, 0}, .kv_lens = {length, 70, 0}},
        3);
    CHECK(sentence_of([&] { plan_and_run(attention, workspace, problem); }) == "accepted");
  }
}
