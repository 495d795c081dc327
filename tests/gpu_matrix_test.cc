// The correctness matrix on the GPU: seeded random configurations against the double-precision
// reference. HEDDLE_MATRIX_CONFIGS and HEDDLE_MATRIX_SEED set how many and which; with HEDDLE_MATRIX_TRACE
// each one says on stderr when it begins and ends, so that one that hangs is known.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "engine/host_kernel.h"
#include "planner/in_step.h"
#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/compositions.h"
#include "tests/problem.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

struct Tally {
  std::mutex mutex;
  int right = 0;
  double worst_ratio = 0;
  std::vector<std::string> wrong;

  void add(const Verdict& verdict) {
    const std::lock_guard lock(mutex);
    right += verdict.ok;
    if (verdict.ok) worst_ratio = std::max(worst_ratio, verdict.error / verdict.allowed);
    if (!verdict.ok && wrong.size() < 20) wrong.push_back(verdict.what);
  }
};

void trace(int index, const char* what, const AttentionConfig& config) {
  static const bool wanted = std::getenv("HEDDLE_MATRIX_TRACE") != nullptr;
  if (wanted)
    fmt::print(stderr, "matrix {} {}: {} {} heads {},{},{},{} page {}\n", index, what, config.variant, name_of(config.kv_dtype),
               config.num_qo_heads, config.num_kv_heads, config.head_dim, config.vo_dim(), config.page_size);
}

// Random compositions among the variants; the rest are the built-in ones.
constexpr int kComposed = 16;

// One Attention, several batches: compiling is what a configuration costs most.
constexpr int kBatchesPerConfig = 10;

void try_config(Engine& engine, int index, int seed, Tally& tally) {
  tools::Random random(std::uint64_t(seed) * 1000003 + index);
  const AttentionConfig config = random_config(random, engine);
  trace(index, "compiles", config);
  Attention attention = engine.attention(config);
  trace(index, "runs", config);
  for (int i = 0; i < kBatchesPerConfig; ++i) {
    // Drawn one after the other: compilers order a call's arguments as they like.
    const std::uint64_t data_seed = random.bits();
    Problem problem(engine, random_shape(random, config, attention.variant()), data_seed);
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    tally.add(problem.judge());
  }
  trace(index, "ends", config);
}

}  // namespace

namespace heddle {
std::span<const BuiltinUnit> composed_units();  // of tests/compositions.h, generated
}  // namespace heddle

TEST_CASE("matrix: random configurations against the reference", "[gpu][matrix]") {
  Engine engine;
  add_units(composed_units());  // for the reference
  VariantRegistry registry;
  add_compositions(registry);
  for (int i = 0; i < kComposed; ++i) engine.register_variant(registry.at(composition_name(i)));
  const int configs = number_from("HEDDLE_MATRIX_CONFIGS", 220), seed = number_from("HEDDLE_MATRIX_SEED", 1);
  Tally tally;
  tools::parallel_for(configs, [&](int i) { try_config(engine, i, seed, tally); });
  fmt::print("matrix: {} of {} configurations right, largest error {:.2f} of what is allowed\n", tally.right,
             configs * kBatchesPerConfig, tally.worst_ratio);
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.wrong.empty());
  CHECK(tally.right == configs * kBatchesPerConfig);
}

// Every pair of head dims on every kernel: decode of 16 rows and of 8, append with wgmma (where there is) and mma.sync.
TEST_CASE("matrix: head dims that tiles pad, and V's apart", "[gpu][dims]") {
  constexpr HeadDims kDims[] = {{8, 8},     {40, 40},   {56, 56},   {72, 72},  {88, 88},   {144, 144}, {200, 200}, {208, 208}, {248, 248},
                                {192, 128}, {128, 192}, {128, 64}, {64, 128}, {72, 56},   {64, 256},  {256, 64},  {16, 248}};
  constexpr const char* kVariants[] = {"causal", "rope", "qk_norm", "sliding_window"};
  constexpr int kPages[] = {16, 0, 64, 1, 5};
  Engine engine;
  Tally tally;
  tools::parallel_for(int(std::size(kDims)) * 3, [&](int i) {
    AttentionConfig config{.variant = kVariants[i % 4], .num_qo_heads = 8, .num_kv_heads = 2,
                           .head_dim = kDims[i / 3].qk, .head_dim_vo = kDims[i / 3].vo, .page_size = kPages[i % 5]};
    config.portable = i % 3 == 1;
    if (i % 3 == 2) config.max_qo_len = i % 2 ? 2 : 16;  // decode, and the append kernel for short rows
    if (i % 2) config.q_dtype = config.kv_dtype = DType::f16;
    if (i / 3 % 2) config.max_requests = 5;
    Attention attention = engine.attention(config);
    for (int batch = 0; batch < 3; ++batch) {
      ProblemShape shape{.config = config, .layout = batch ? KvLayout::HND : KvLayout::NHD,
                         .qo_lens = {1, 2, 70, 0, 140}, .kv_lens = {2000, 65, 130, 3, 500 + 300 * batch}};
      if (config.max_qo_len) shape.qo_lens = {1, 2, config.max_qo_len - 1, 0, config.max_qo_len};
      Problem problem(engine, shape, std::uint64_t(100 * i + batch));
      Workspace workspace = attention.workspace(problem.maxima());
      plan_and_run(attention, workspace, problem);
      tally.add(problem.judge());
    }
  });
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.wrong.empty());
  CHECK(tally.right == int(std::size(kDims)) * 9);
}

// Requests, 70 at most.
int most_in_step(const PlanConfig& config) {
  return std::min(70, int(kMostInStep) * config.of(Pipeline::decode).num_ctas / config.num_kv_heads);
}

// Batches with a stream a CTA or more, whose heads neighbouring CTAs read in step (planner/in_step.h).
TEST_CASE("matrix: heads in step, one a CTA and several, of one token and of four", "[gpu][in_step]") {
  Engine engine;
  Tally tally;
  constexpr int kCases = 8;
  tools::parallel_for(kCases, [&](int i) {
    AttentionConfig config{.variant = i % 3 ? "causal" : "soft_cap", .num_qo_heads = 32, .num_kv_heads = i & 1 ? 8 : 32,
                           .head_dim = 128, .page_size = i & 2 ? 16 : 0, .max_qo_len = i & 4 ? 4 : 1};
    Attention attention = engine.attention(config);
    tools::Random random(std::uint64_t(700 + i));
    ProblemShape shape{.config = config};
    const int requests = most_in_step(attention.plan_config());
    for (int r = 0; r < requests; ++r) {
      shape.qo_lens.push_back(int(1 + random.bits() % std::uint64_t(config.max_qo_len)));
      shape.kv_lens.push_back(int(4 + random.bits() % 700));
    }
    Problem problem(engine, shape, std::uint64_t(900 + i));
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    Verdict verdict = problem.judge();
    if (heads_in_step(attention.plan_config(), requests * config.num_kv_heads) == 1)
      verdict.ok = false, verdict.what = "its heads are not read in step";
    tally.add(verdict);
  });
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.right == kCases);
}

// Rows so short that decode reads two heads abreast: pieces by the dozen, whole items and ends of both, rows of 8 and of 16.
TEST_CASE("matrix: heads read abreast, cut and whole, of one token and of several", "[gpu][abreast]") {
  constexpr const char* kVariants[] = {"causal", "sliding_window", "softmax", "attention_sink", "rope", "alibi"};
  constexpr int kDims[] = {64, 96, 32, 72}, kPages[] = {16, 0, 1};
  constexpr int kCases = 24;
  Engine engine;
  Tally tally;
  tools::parallel_for(kCases, [&](int i) {
    const int dim = kDims[i % 4];
    // Rows of more than 64 columns only without hooks on tiles.
    AttentionConfig config{.variant = kVariants[i / 4 % (dim > 64 ? 4 : 6)], .num_qo_heads = 16, .num_kv_heads = i & 1 ? 4 : 2,
                           .head_dim = dim, .page_size = kPages[i % 3], .max_qo_len = i & 8 ? 2 : 1};
    if (i % 5 == 0) config.q_dtype = config.kv_dtype = DType::f16;
    Attention attention = engine.attention(config);
    ProblemShape shape{.config = config, .layout = i & 2 ? KvLayout::HND : KvLayout::NHD};
    tools::Random random(std::uint64_t(1700 + i));
    const auto add = [&](int kv_len) {
      shape.qo_lens.push_back(int(1 + random.bits() % std::uint64_t(config.max_qo_len)));
      shape.kv_lens.push_back(kv_len);
    };
    if (i % 2) add(40000);
    for (int r = 0; r < 40; ++r) add(int(2 + random.bits() % 900));
    Problem problem(engine, shape, std::uint64_t(1900 + i));
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    Verdict verdict = problem.judge();
    if (attention.plan_config().of(Pipeline::decode).heads_abreast != 2)
      verdict.ok = false, verdict.what = "its heads are not read abreast";
    tally.add(verdict);
  });
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.right == kCases);
}

// Small enough for compute-sanitizer's racecheck: every pipeline, whole and cut items, pages and ragged.
TEST_CASE("sanitizer subset: a few small problems", "[gpu][sanitizer]") {
  Engine engine;
  int right = 0;
  constexpr const char* kVariants[] = {"causal", "gemma2", "causal", "gemma2", "rope"};
  for (int i = 0; i < 5; ++i) {
    AttentionConfig config{.variant = kVariants[i], .num_qo_heads = 4, .num_kv_heads = 2,
                           .head_dim = i < 2 ? 128 : 64, .page_size = i % 2 ? 16 : 0};
    if (i == 4) config.max_qo_len = 20;   // the append kernel for short rows
    if (i % 2) config.max_requests = 4;  // the decode tile for few heads
    Attention attention = engine.attention(config);
    Problem problem(engine, {.config = config, .qo_lens = {1, 2, i == 4 ? 20 : 70, 0}, .kv_lens = {700, 65, 130, 3}}, 100 + i);
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    right += problem.judge().ok;
  }
  CHECK(right == 5);
}
