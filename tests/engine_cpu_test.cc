// The CPU device: a seeded matrix against the double-precision reference, one workspace through
// batches of every size, and the same bits for the same batch.
#include <mutex>

#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/problem.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

constexpr int kConfigs = 60, kBatchesPerConfig = 4;

struct Tally {
  std::mutex mutex;
  int right = 0, cut = 0;
  std::vector<std::string> wrong;

  void add(const Verdict& verdict, const PlanSummary& summary) {
    const std::lock_guard lock(mutex);
    right += verdict.ok;
    cut += summary.partials[0] + summary.partials[1] > 0;
    if (!verdict.ok && wrong.size() < 20) wrong.push_back(verdict.what);
  }
};

void try_config(Engine& engine, int index, Tally& tally) {
  tools::Random random(7000003 + std::uint64_t(index));
  const AttentionConfig config = random_config(random, engine);
  Attention attention = engine.attention(config);
  for (int i = 0; i < kBatchesPerConfig; ++i) {
    Problem problem(engine, random_shape(random, config, attention.variant()), random.bits());
    Workspace workspace = attention.workspace(problem.maxima());
    plan_and_run(attention, workspace, problem);
    tally.add(problem.judge(), workspace.summary());
  }
}

AttentionConfig small_config(int page_size = 16) {
  return {.variant = "causal",
          .num_qo_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 64,
          .page_size = page_size};
}

// Decode, append, rows without keys, a request that is cut.
ProblemShape mixed_shape(const AttentionConfig& config) {
  return {.config = config, .qo_lens = {1, 1, 40, 3, 0, 70}, .kv_lens = {900, 0, 65, 130, 7, 20}};
}

Verdict run_mixed(Engine& engine, const AttentionConfig& config) {
  Attention attention = engine.attention(config);
  ProblemShape shape = mixed_shape(config);
  shape.want_lse = attention.variant().use_softmax;
  Problem problem(engine, shape, std::uint64_t(config.head_dim));
  Workspace workspace = attention.workspace(problem.maxima());
  plan_and_run(attention, workspace, problem);
  return problem.judge();
}

struct Bits {
  std::vector<std::uint16_t> o;
  std::vector<std::uint32_t> lse;
  bool operator==(const Bits&) const = default;
};

Bits bits_of(Attention& attention, Workspace& workspace, Problem& problem) {
  problem.poison_output();
  plan_and_run(attention, workspace, problem);
  return {problem.o_bits(), problem.lse_bits()};
}

// Those of a small problem, judged too.
Bits right_bits_of(Engine& engine, const char* variant) {
  AttentionConfig config = small_config();
  config.variant = variant;
  Attention attention = engine.attention(config);
  Problem problem(engine, mixed_shape(config), 5);
  Workspace workspace = attention.workspace(problem.maxima());
  const Bits bits = bits_of(attention, workspace, problem);
  const Verdict verdict = problem.judge();
  INFO(verdict.what);
  CHECK(verdict.ok);
  return bits;
}

// The page ids of a CSR batch as a dense table, the unused entries out of any pool.
struct DenseTable {
  std::vector<std::int32_t> entries, kv_lens;
  std::int64_t stride = 0;

  DenseTable(const Problem& problem, std::int64_t row_stride)
      : kv_lens(problem.shape().kv_lens), stride(row_stride) {
    const Batch csr = problem.batch();
    const std::int32_t* ids = problem.tensors().kv_indices;
    entries.assign(kv_lens.size() * std::size_t(stride), -1);
    for (std::size_t r = 0; r < kv_lens.size(); ++r)
      std::copy(ids + csr.kv_indptr[r], ids + csr.kv_indptr[r + 1],
                entries.begin() + std::ptrdiff_t(r) * stride);
  }
};

}  // namespace

TEST_CASE("cpu matrix: random configurations against the reference", "[engine][matrix]") {
  Engine engine = cpu_engine();
  Tally tally;
  tools::parallel_for(kConfigs, [&](int i) { try_config(engine, i, tally); });
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.wrong.empty());
  CHECK(tally.right == kConfigs * kBatchesPerConfig);
  CHECK(tally.cut > kConfigs);  // merges were at work
}

// Rotary pairs, means of squares and every stride go by head_dim, whatever a kernel pads it to.
TEST_CASE("cpu: any head_dim that is a multiple of 8", "[engine]") {
  Engine engine = cpu_engine();
  for (const int head_dim : {8, 24, 56, 72, 88, 200, 248}) {
    for (const char* variant : {"causal", "rope", "rope_interleaved", "qk_norm"}) {
      AttentionConfig config = small_config(head_dim % 16 ? 16 : 0);
      config.variant = variant;
      config.head_dim = head_dim;
      const Verdict verdict = run_mixed(engine, config);
      INFO(verdict.what);
      CHECK(verdict.ok);
    }
  }
}

TEST_CASE("cpu: V's head_dim need not be that of q and k", "[engine]") {
  Engine engine = cpu_engine();
  for (const auto& [head_dim, head_dim_vo] : {std::pair{192, 128}, {128, 64}, {64, 128}, {72, 56}, {8, 248}}) {
    for (const char* variant : {"causal", "rope", "sigmoid", "softmax_one"}) {
      AttentionConfig config = small_config(head_dim % 64 ? 0 : 16);
      config.variant = variant;
      config.head_dim = head_dim, config.head_dim_vo = head_dim_vo;
      const Verdict verdict = run_mixed(engine, config);
      INFO(verdict.what);
      CHECK(verdict.ok);
    }
  }
}

// A mask of new keys says in a word what its code would otherwise have to: alone, and beside one of all keys.
TEST_CASE("cpu: a mask of new keys keeps all older ones", "[engine]") {
  Engine engine = cpu_engine();
  const std::string code = "(kv_pos + q_pos) % 3 != 0 && logit < 1.0f";
  add_spec(engine, R"({"name": "of_new", "hooks": {"logits_mask": {"keys": "new", "code": "return )" + code + R"(;"}}})");
  add_spec(engine, R"({"name": "of_all", "hooks": {"logits_mask": "return kv_pos < kv_len - qo_len || ()" + code + R"();"}})");
  add_spec(engine, R"({"name": "odd", "hooks": {"logits_mask": "return kv_pos % 2 == 1;"}})");
  add_spec(engine, R"({"name": "of_new_and_odd", "compose": ["of_new", "odd"]})");
  add_spec(engine, R"({"name": "of_all_and_odd", "compose": ["of_all", "odd"]})");
  CHECK(engine.variants().at("of_new").masks_new_keys_only());
  CHECK_FALSE(engine.variants().at("of_new_and_odd").masks_new_keys_only());
  CHECK(right_bits_of(engine, "of_new") == right_bits_of(engine, "of_all"));
  CHECK(right_bits_of(engine, "of_new_and_odd") == right_bits_of(engine, "of_all_and_odd"));
}

TEST_CASE("cpu: a max_distance gives the bits of the same distance held in the code", "[engine]") {
  Engine engine = cpu_engine();
  const std::string params = R"("params": {"reach": {"type": "i32", "min": 0, "default": 30}})";
  const std::string code = "return logit + 0.01f * where + 0.02f * far;";
  const auto add = [&](const std::string& name, const std::string& hook) {
    add_spec(engine, fmt::format(R"({{"name": "{}", {}, "hooks": {{"logits_transform": {}}}}})", name, params, hook));
  };
  add("held", R"({"max_distance": "reach", "code": "const int where = kv_pos; const float far = kv_distance; )" + code + R"("})");
  add("held_by_code", R"("const int where = q_pos + max(-params.reach, min(params.reach, kv_pos - q_pos)); const float far = q_pos - where; )" +
                          code + "\"");
  add("not_held", R"("const int where = kv_pos; const float far = kv_distance; )" + code + "\"");
  const Bits held = right_bits_of(engine, "held");
  CHECK(held == right_bits_of(engine, "held_by_code"));
  CHECK_FALSE(held == right_bits_of(engine, "not_held"));
}

TEST_CASE("one workspace serves batches that shrink and grow, none included", "[engine]") {
  Engine engine = cpu_engine();
  for (const int page_size : {0, 1, 16}) {
    const AttentionConfig config = small_config(page_size);
    Attention attention = engine.attention(config);
    Workspace workspace =
        attention.workspace({.max_requests = 8, .max_qo_rows = 200, .max_kv_tokens = 3000});
    const ProblemShape shapes[] = {
        {.config = config, .qo_lens = {1}, .kv_lens = {5}},
        mixed_shape(config),
        {.config = config},
        {.config = config, .qo_lens = {1, 1}, .kv_lens = {64, 1500}},
        {.config = config, .qo_lens = {0, 0}, .kv_lens = {0, 9}},
        {.config = config, .qo_lens = {150, 1}, .kv_lens = {170, 2}},
        {.config = config, .qo_lens = {5}, .kv_lens = {2}},
    };
    for (std::uint64_t seed = 0; const ProblemShape& shape : shapes) {
      Problem problem(engine, shape, ++seed);
      plan_and_run(attention, workspace, problem);
      const Verdict verdict = problem.judge();
      INFO(verdict.what);
      CHECK(verdict.ok);
    }
  }
}

TEST_CASE("the same batch gives the same bits: again, after another, in another workspace",
          "[engine]") {
  Engine engine = cpu_engine();
  const AttentionConfig config = small_config();
  Attention attention = engine.attention(config);
  Problem problem(engine, mixed_shape(config), 11);
  Problem other(engine, {.config = config, .qo_lens = {2}, .kv_lens = {300}}, 12);
  Workspace tight = attention.workspace(problem.maxima());
  Workspace wide =
      attention.workspace({.max_requests = 99, .max_qo_rows = 999, .max_kv_tokens = 1 << 20});

  const Bits first = bits_of(attention, tight, problem);
  CHECK(problem.judge().ok);
  CHECK(tight.summary().partials[0] > 0);
  CHECK(bits_of(attention, tight, problem) == first);
  problem.poison_output();
  attention.run(tight, problem.tensors());  // one plan, two runs: another layer
  CHECK(Bits{problem.o_bits(), problem.lse_bits()} == first);
  bits_of(attention, wide, other);
  CHECK(bits_of(attention, wide, problem) == first);
}

TEST_CASE("a dense page table gives the bits of the same pages as CSR", "[engine]") {
  Engine engine = cpu_engine();
  const AttentionConfig config = small_config(5);
  Attention attention = engine.attention(config);
  Problem problem(engine, mixed_shape(config), 21);
  Workspace workspace = attention.workspace(problem.maxima());
  const Bits csr = bits_of(attention, workspace, problem);

  const DenseTable table(problem, 200);
  problem.poison_output();
  attention.plan({.qo_indptr = problem.batch().qo_indptr,
                  .kv_table_stride = table.stride,
                  .kv_lens = table.kv_lens},
                 workspace);
  Tensors tensors = problem.tensors();
  tensors.kv_indices = table.entries.data();
  attention.run(workspace, tensors);
  CHECK(Bits{problem.o_bits(), problem.lse_bits()} == csr);
}

TEST_CASE("lse and the maxima's own batch are optional: no lse, exact maxima", "[engine]") {
  Engine engine = cpu_engine();
  const AttentionConfig config = small_config(0);
  Attention attention = engine.attention(config);
  ProblemShape shape = mixed_shape(config);
  shape.want_lse = false;
  Problem problem(engine, shape, 31);
  Workspace workspace = attention.workspace(problem.maxima());
  CHECK(workspace.bytes() == attention.workspace_bytes(problem.maxima()));
  CHECK(workspace.plan_bytes().empty());
  plan_and_run(attention, workspace, problem);
  CHECK(problem.judge().ok);
  CHECK(workspace.plan_bytes().size() == workspace.summary().plan_bytes);
  for (const std::uint32_t bits : problem.lse_bits()) CHECK(bits == 0x7fc00123u);
}

TEST_CASE("threads with a workspace each share one Attention", "[engine]") {
  Engine engine = cpu_engine();
  const AttentionConfig config = small_config();
  Attention attention = engine.attention(config);
  Tally tally;
  tools::parallel_for(8, [&](int i) {
    Problem problem(engine, mixed_shape(config), std::uint64_t(100 + i));
    Workspace workspace = attention.workspace(problem.maxima());
    Attention own = attention;
    plan_and_run(own, workspace, problem);
    tally.add(problem.judge(), workspace.summary());
  });
  CHECK(tally.right == 8);
}
