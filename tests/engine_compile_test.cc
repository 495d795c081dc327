// Every kernel compiles without a GPU and keeps its state in registers: the built-in variants for
// each architecture, and a sample of head dims, groups, dtypes and page sizes.
#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "engine/launch_set.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

struct Job {
  AttentionConfig config;
  std::string arch;
  Pipeline pipeline = Pipeline::decode;

  std::string describe() const {
    return fmt::format("{} of {} {} heads {},{},{},{} page {} for {}", name_of(pipeline),
                       config.variant, name_of(config.q_dtype), config.num_qo_heads,
                       config.num_kv_heads, config.head_dim, config.vo_dim(), config.page_size, arch);
  }
};

std::vector<Job> jobs_of(const std::vector<AttentionConfig>& configs,
                         const std::vector<std::string>& archs) {
  std::vector<Job> jobs;
  for (const AttentionConfig& config : configs)
    for (const std::string& arch : archs)
      for (const Pipeline pipeline : launch_set(config)) jobs.push_back({config, arch, pipeline});
  return jobs;
}

// Known: decode keeps q and o of a warp's rows in registers, which for head dims above 128 takes
// all 255 that a thread can have, and a few words more. A stated bound until the kernel needs
// fewer.
int allowed_spill(const Job& job) {
  return job.pipeline == Pipeline::decode && job.config.head_dim > 128 ? 160 : 0;
}

class Sweep {
 public:
  void run(const std::vector<Job>& jobs) {
    tools::parallel_for(int(jobs.size()), [&](int i) { compile(jobs[i]); });
  }
  const std::vector<std::string>& problems() const { return problems_; }
  const std::vector<std::string>& spills() const { return spills_; }  // allowed ones
  int compiled() const { return compiled_; }

 private:
  void compile(const Job& job) {
    std::string problem = sentence_of([&] { build(job); });
    const std::lock_guard lock(mutex_);
    if (problem != "accepted") problems_.push_back(job.describe() + ": " + problem);
    compiled_ += problem == "accepted";
  }

  void build(const Job& job) {
    const Variant& variant = variants_.at(job.config.variant);
    const KernelBuild built =
        build_kernel(cache_, compiler_, job.pipeline, variant, variant.resolve({}), job.config,
                     job.arch, limits_of(job.arch));
    const Artifact& artifact = *built.result.artifact;
    if (artifact.image.substr(1, 3) != "ELF")
      fail(ErrorKind::compile_failed, "the image is no cubin.");
    if (artifact.spill_bytes > allowed_spill(job))
      fail(ErrorKind::compile_failed, "{} bytes are spilled.", artifact.spill_bytes);
    if (artifact.spill_bytes > 0) note_spill(job, artifact.spill_bytes);
    if (built.tile.smem_bytes > limits_of(job.arch).shared_per_block)
      fail(ErrorKind::compile_failed, "{} bytes of shared memory.", built.tile.smem_bytes);
  }

  void note_spill(const Job& job, int bytes) {
    const std::lock_guard lock(mutex_);
    spills_.push_back(fmt::format("{}: {} bytes are spilled", job.describe(), bytes));
  }

  VariantRegistry variants_;
  KernelCache cache_{{.disk = false}};
  NvrtcCompiler compiler_;
  std::mutex mutex_;
  std::vector<std::string> problems_, spills_;
  int compiled_ = 0;
};

void check_all(const std::vector<Job>& jobs) {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  Sweep sweep;
  sweep.run(jobs);
  for (const std::string& spill : sweep.spills()) WARN("Known limit: " << spill);
  for (const std::string& problem : sweep.problems()) UNSCOPED_INFO(problem);
  CHECK(sweep.problems().empty());
  CHECK(sweep.compiled() == int(jobs.size()));
}

AttentionConfig with(const char* variant, int group, int head_dim, DType dtype, int page_size, int head_dim_vo = 0) {
  return {.variant = variant,
          .num_qo_heads = 2 * group,
          .num_kv_heads = 2,
          .head_dim = head_dim,
          .head_dim_vo = head_dim_vo,
          .q_dtype = dtype,
          .kv_dtype = dtype,
          .page_size = page_size};
}

bool sweeps_all() {
  const char* wish = std::getenv("HEDDLE_SWEEP");
  return wish != nullptr && std::string_view(wish) == "all";
}

}  // namespace

// Of each kind of hook one goes to every architecture, the others to the one whose kernels have the
// fewest registers to spare. HEDDLE_SWEEP=all: all to all, as before a release (five minutes on two
// cores; 2026-11-30: 300 kernels, no spills).
TEST_CASE("compile sweep: the built-in variants for every architecture, without spills",
          "[engine][compile]") {
  const std::vector<std::string> kinds = {"softmax",     "sliding_window", "soft_cap", "sigmoid",
                                          "custom_mask", "attention_sink", "rope"};
  const bool all = sweeps_all();
  std::vector<AttentionConfig> everywhere, once;
  for (const std::string& name : VariantRegistry().names()) {
    const bool is_kind = std::find(kinds.begin(), kinds.end(), name) != kinds.end();
    (all || is_kind ? everywhere : once)
        .push_back({.variant = name, .num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128});
  }
  REQUIRE(everywhere.size() >= kinds.size());
  std::vector<Job> jobs =
      jobs_of(everywhere, {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"});
  for (const Job& job : jobs_of(once, {"sm_90a"})) jobs.push_back(job);
  check_all(jobs);
}

TEST_CASE("compile sweep: head dims, groups, dtypes and page sizes, each at least once",
          "[engine][compile]") {
  const std::vector<AttentionConfig> configs = {
      with("causal", 1, 64, DType::f16, 0),    with("softmax", 3, 96, DType::bf16, 1),
      with("gemma2", 7, 192, DType::f16, 5),   with("sliding_window", 12, 256, DType::bf16, 64),
      with("sigmoid", 20, 256, DType::f16, 1),
  };
  check_all(jobs_of(configs, {"sm_80", "sm_90a"}));
}

TEST_CASE("compile sweep: head dims that are padded inside, and V's apart, for every architecture", "[engine][compile]") {
  const std::vector<AttentionConfig> configs = {with("causal", 4, 56, DType::bf16, 16), with("qk_norm", 8, 72, DType::f16, 64),
                                                with("causal", 1, 192, DType::bf16, 64, 128)};
  check_all(jobs_of(configs, {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"}));
  check_all(jobs_of({with("rope", 1, 8, DType::bf16, 0), with("softmax", 2, 200, DType::f16, 16),
                     with("rope", 16, 64, DType::bf16, 1, 128), with("softmax", 4, 128, DType::bf16, 16, 64),
                     with("causal", 4, 72, DType::f16, 0, 56), with("softmax", 8, 64, DType::bf16, 16, 256)},
                    {"sm_80", "sm_90a"}));
}

TEST_CASE("compile sweep: kernels that share prefixes", "[engine][compile]") {
  std::vector<AttentionConfig> configs = {with("causal", 4, 128, DType::bf16, 16), with("sigmoid", 8, 64, DType::f16, 1),
                                          with("softmax_one", 1, 256, DType::bf16, 64), with("softmax", 4, 72, DType::bf16, 16, 56)};
  for (AttentionConfig& config : configs) config.share_prefixes = true;
  check_all(jobs_of(configs, {"sm_80", "sm_90a"}));
}

TEST_CASE("compile sweep: the append kernel for short rows", "[engine][compile]") {
  std::vector<Job> jobs;
  for (AttentionConfig config : {with("tree_mask", 4, 128, DType::bf16, 16), with("relative_bias", 8, 128, DType::f16, 0),
                                 with("soft_cap", 20, 64, DType::bf16, 1), with("qk_norm", 4, 256, DType::bf16, 64),
                                 with("custom_mask", 7, 192, DType::bf16, 16, 128), with("rope", 5, 96, DType::f16, 16)}) {
    config.max_qo_len = 64 / (config.num_qo_heads / config.num_kv_heads);
    jobs.push_back({config, "sm_90a", Pipeline::append});
  }
  check_all(jobs);
}

TEST_CASE("compile sweep: the decode kernel for few heads", "[engine][compile]") {
  std::vector<Job> jobs;
  std::vector<AttentionConfig> configs = {with("softmax", 4, 128, DType::bf16, 16), with("relative_bias", 8, 128, DType::f16, 0),
                                          with("soft_cap", 16, 64, DType::bf16, 1), with("qk_norm", 4, 192, DType::bf16, 64),
                                          with("custom_mask", 7, 128, DType::bf16, 16), with("rope", 5, 96, DType::f16, 16)};
  if (sweeps_all())
    for (const std::string& name : VariantRegistry().names()) configs.push_back(with(name.c_str(), 4, 128, DType::bf16, 16));
  for (AttentionConfig& config : configs) {
    config.max_requests = 1;
    for (const int max_qo_len : {0, 1}) {
      config.max_qo_len = max_qo_len;
      for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) jobs.push_back({config, arch, Pipeline::decode});
    }
  }
  check_all(jobs);
}

TEST_CASE("tiles of the append kernel follow from the declared maximum", "[engine]") {
  const auto rows = [](int group, int max_qo_len, bool share_prefixes = false, const char* arch = "sm_90a") {
    const AttentionConfig config{.num_qo_heads = 2 * group, .num_kv_heads = 2, .head_dim = 128, .max_qo_len = max_qo_len,
                                 .share_prefixes = share_prefixes};
    return tile_candidates(Pipeline::append, config, limits_of(arch))[0].rows;
  };
  const auto short_kv = [](int head_dim, int page_size) {
    return tile_candidates(Pipeline::append, {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = head_dim,
                                              .page_size = page_size, .max_qo_len = 8}, limits_of("sm_90a"))[0].kv;
  };
  for (const int page_size : {0, 16, 64}) CHECK(short_kv(128, page_size) == 64);
  CHECK(short_kv(128, 1) == 128);  // gathered
  CHECK(short_kv(64, 16) == 128);
  const auto plain_kv = [](int head_dim, const char* variant) {
    const VariantRegistry variants;
    return tile_candidates(Pipeline::append, {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = head_dim}, limits_of("sm_90a"),
                           has_tile_hooks(variants.at(variant)))[0].kv;
  };
  for (const char* variant : {"softmax", "causal", "streaming_llm", "attention_sink"}) CHECK(plain_kv(64, variant) == 128);
  for (const char* variant : {"soft_cap", "tree_mask", "key_ranges", "rope", "sigmoid"}) CHECK(plain_kv(64, variant) == 96);
  CHECK(plain_kv(128, "causal") == 128);
  CHECK(rows(4, 0) == 128);
  CHECK(rows(4, 5) == 64);
  CHECK(rows(4, 16) == 64);
  CHECK(rows(4, 17) == 128);
  CHECK(rows(64, 1) == 64);
  CHECK(rows(65, 1) == 128);
  CHECK(rows(2, 1 << 30) == 128);
  CHECK(rows(4, 16, true) == 128);
  CHECK(rows(4, 16, false, "sm_80") == 128);
}

TEST_CASE("decode has one large CTA an SM where there are few heads, by the declared maximum or the model", "[engine]") {
  const auto tile = [](int kv_heads, int max_requests, int head_dim = 128, const char* arch = "sm_90a") {
    return tile_candidates(Pipeline::decode, {.num_qo_heads = 4 * kv_heads, .num_kv_heads = kv_heads, .head_dim = head_dim,
                                              .max_requests = max_requests}, limits_of(arch))[0];
  };
  const auto is_large = [](const TileConfig& t) { return t.warps == 8 && t.ctas_per_sm == 1; };
  CHECK(!is_large(tile(8, 0)));
  CHECK(is_large(tile(8, 1)));
  CHECK(is_large(tile(8, 16)));  // 128 kv heads of requests, 132 SMs
  CHECK(!is_large(tile(8, 17)));
  CHECK(!is_large(tile(8, 1 << 30)));
  CHECK(is_large(tile(1, 0)));
  CHECK(tile(8, 1, 64).kv == 8 * 32);
  CHECK(tile(8, 1).kv == 8 * 16);
  CHECK(tile(8, 1, 256).warps == tile(8, 0, 256).warps);
  CHECK(tile(8, 1, 128, "sm_86").warps == tile(8, 0, 128, "sm_86").warps);  // no room
}

TEST_CASE("decode reads short rows of two neighbouring kv heads abreast", "[engine]") {
  const auto tile = [](AttentionConfig config, bool hooks = false, const char* arch = "sm_90a") {
    config.num_qo_heads = 4 * config.num_kv_heads;
    return tile_candidates(Pipeline::decode, config, limits_of(arch), hooks)[0];
  };
  const TileConfig d64 = tile({.num_kv_heads = 8, .head_dim = 64}), d96 = tile({.num_kv_heads = 2, .head_dim = 96});
  CHECK((d64.heads_abreast == 2 && d64.kv == 2 * 32 && d64.warps * d64.ctas_per_sm == 12));
  CHECK((d96.heads_abreast == 2 && d96.kv == 2 * 16 && d96.warps * d96.ctas_per_sm == 8));
  CHECK(tile({.num_kv_heads = 8, .head_dim = 64}, true).heads_abreast == 2);
  CHECK(tile({.num_kv_heads = 8, .head_dim = 96}, true).heads_abreast == 1);  // hooks want more warps
  CHECK(tile({.num_kv_heads = 8, .head_dim = 128}).heads_abreast == 1);
  CHECK(tile({.num_kv_heads = 3, .head_dim = 64}).heads_abreast == 1);
  CHECK(tile({.num_kv_heads = 8, .head_dim = 64, .max_requests = 16}).heads_abreast == 1);  // few heads
  CHECK(tile({.num_kv_heads = 8, .head_dim = 64, .batch_invariant = true}).heads_abreast == 1);
  CHECK(pipeline_shape(Pipeline::decode, d64, 396, {64, 64}).heads_abreast == 2);
}

namespace {

// Spills as often as told, 10 ms a compile.
class SpillingCompiler : public Compiler {
 public:
  explicit SpillingCompiler(int spills) : spills_(spills) {}
  const std::string& identity() const override { return name_; }
  Artifact compile(const CompileRequest& request) override {
    units.push_back(request.unit);
    return {.image = "image", .compile_ms = 10, .spill_bytes = int(units.size()) <= spills_ ? 8 : 0};
  }
  std::vector<std::string> units;

 private:
  const std::string name_ = "spilling";
  const int spills_;
};

}  // namespace

TEST_CASE("decode with 16 rows reads q again before it takes a smaller tile; compiles in vain are counted", "[engine]") {
  const Variant variant = Variant::from_json(R"({"name": "v"})", "v.json", {});
  const auto build = [&](SpillingCompiler& compiler, int max_qo_len) {
    KernelCache cache({.disk = false});
    const AttentionConfig config{.variant = "v", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128, .max_qo_len = max_qo_len};
    return build_kernel(cache, compiler, Pipeline::decode, variant, {}, config, "sm_90a", limits_of("sm_90a"));
  };
  SpillingCompiler never(0), once(1), twice(2), once_with_8_rows(1), always(9);
  const KernelBuild first = build(never, 4), second = build(once, 4), third = build(twice, 4);
  CHECK((first.tile.warps == 6 && !first.tile.reads_q_again && first.ms_in_vain == 0));
  CHECK((second.tile.warps == 6 && second.tile.reads_q_again && second.ms_in_vain == 10));
  CHECK((third.tile.warps == 4 && !third.tile.reads_q_again && third.ms_in_vain == 20));
  CHECK(once.units[1].find(".reads_q_again = true") != std::string::npos);
  CHECK(build(once_with_8_rows, 1).tile.warps == 4);
  const KernelBuild last = build(always, 4);  // its registers lie in memory, and it is taken all the same
  CHECK((last.tile.warps == 4 && last.ms_in_vain == 20 && last.result.artifact->spill_bytes == 8));
}

TEST_CASE("the launch set follows from the shapes and the declared maximum", "[engine]") {
  const auto set = [](int group, int max_qo_len) {
    return launch_set(
        {.num_qo_heads = 2 * group, .num_kv_heads = 2, .head_dim = 64, .max_qo_len = max_qo_len});
  };
  using Set = std::vector<Pipeline>;
  CHECK(set(4, 0) == Set{Pipeline::decode, Pipeline::append});
  CHECK(set(4, 4) == Set{Pipeline::decode});
  CHECK(set(4, 5) == Set{Pipeline::decode, Pipeline::append});
  CHECK(set(16, 1) == Set{Pipeline::decode});
  CHECK(set(17, 1) == Set{Pipeline::append});
}

TEST_CASE("an architecture that nobody knows is named with those that are", "[engine]") {
  CHECK(
      sentence_of([] { limits_of("sm_75"); }) ==
      "Architecture \"sm_75\" is not known; known are sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, "
      "sm_103a, sm_120.");
  CHECK(sentence_of([] { arch_of(7, 5); }) ==
        "The GPU has compute capability 7.5; heddle needs 8.0 or later.");
  CHECK(arch_of(8, 6) == "sm_86");
  CHECK(arch_of(9, 0) == "sm_90a");
}
