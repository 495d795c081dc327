// The kernels of append_kv and merge_states compile without a GPU for every architecture, keep their
// state in registers, and hold what the config says.
#include <mutex>

#include <fmt/format.h>

#include "engine/merge_source.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

const std::vector<std::string> kArchs = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"};

AttentionConfig config_of(const char* variant, AppendKv mode, int head_dim = 128, int page_size = 16, DType dtype = DType::bf16) {
  return {.variant = variant, .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = head_dim, .q_dtype = dtype, .kv_dtype = dtype,
          .page_size = page_size, .append_kv = mode};
}

struct Job {
  std::string what, arch;
  std::function<KernelBuild(KernelCache&, Compiler&, const std::string& arch)> build;
};

void check_all(const std::vector<Job>& jobs) {
  if (const auto why = NvrtcCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  KernelCache cache({.disk = false});
  NvrtcCompiler compiler;
  std::mutex mutex;
  std::vector<std::string> problems;
  int compiled = 0;
  tools::parallel_for(int(jobs.size()), [&](int i) {
    std::string problem = sentence_of([&] {
      const KernelBuild built = jobs[i].build(cache, compiler, jobs[i].arch);
      if (built.result.artifact->image.substr(1, 3) != "ELF") fail(ErrorKind::compile_failed, "the image is no cubin.");
      if (built.result.artifact->spill_bytes > 0)
        fail(ErrorKind::compile_failed, "{} bytes are spilled.", built.result.artifact->spill_bytes);
    });
    const std::lock_guard lock(mutex);
    if (problem != "accepted") problems.push_back(fmt::format("{} for {}: {}", jobs[i].what, jobs[i].arch, problem));
    compiled += problem == "accepted";
  });
  for (const std::string& problem : problems) UNSCOPED_INFO(problem);
  CHECK(problems.empty());
  CHECK(compiled == int(jobs.size()));
}

}  // namespace

TEST_CASE("append_kv compiles for every architecture, copies and each kind of transform", "[engine][append_kv][compile]") {
  VariantRegistry variants;
  variants.add(Variant::from_json(R"({"name": "values", "hooks": {"value_transform": "return x * kv_pos;"}})", "test.json", variants));
  variants.add(Variant::from_json(R"({"name": "normed_rope", "compose": ["qk_norm", "rope"]})", "test.json", variants));
  std::vector<Job> jobs;
  const auto add = [&](const AttentionConfig& config, const std::string& arch, ParamValues constants = {}) {
    const Variant& variant = variants.at(config.variant);
    jobs.push_back({fmt::format("append_kv ({}) of {}", name_of(config.append_kv), config.variant), arch,
                    [=, values = variant.resolve(constants)](KernelCache& cache, Compiler& compiler, const std::string& name) {
                      return build_append_kv(cache, compiler, variant, values, config, name);
                    }});
  };
  for (const std::string& arch : kArchs) {
    add(config_of("softmax", AppendKv::copy), arch);
    add(config_of("rope", AppendKv::transform), arch);
    add(config_of("normed_rope", AppendKv::transform), arch);
  }
  for (const int head_dim : {16, 56, 80, 256})
    for (const int page_size : {0, 1, 48}) add(config_of("softmax", AppendKv::copy, head_dim, page_size, DType::f16), "sm_90a");
  for (const char* variant : {"rope_interleaved", "llama31_rope", "qk_norm", "values"})
    add(config_of(variant, AppendKv::transform, 80, 0, DType::f16), "sm_90a");
  add(config_of("rope", AppendKv::transform), "sm_90a", {{"rotary_dim", 20}});
  for (const auto& [head_dim, vo] : {std::pair{192, 128}, std::pair{56, 128}}) {
    AttentionConfig config = config_of("values", AppendKv::transform, head_dim);
    config.head_dim_vo = vo;
    add(config, "sm_90a");
    config.append_kv = AppendKv::copy;
    add(config, "sm_90a");
  }
  check_all(jobs);
}

TEST_CASE("keys are transformed ahead of append by a kernel that compiles for every architecture",
          "[engine][transformed_keys][compile]") {
  VariantRegistry variants;
  variants.add(Variant::from_json(R"({"name": "normed_rope", "compose": ["qk_norm", "rope"]})", "test.json", variants));
  std::vector<Job> jobs;
  const auto add = [&](const AttentionConfig& config, const std::string& arch) {
    const Variant& variant = variants.at(config.variant);
    jobs.push_back({fmt::format("transformed keys of {} head_dim {}", config.variant, config.head_dim), arch,
                    [=, values = variant.resolve({})](KernelCache& cache, Compiler& compiler, const std::string& name) {
                      return build_transformed_keys(cache, compiler, variant, values, config, name);
                    }});
  };
  for (const std::string& arch : kArchs)
    for (const char* variant : {"rope", "normed_rope"}) add(config_of(variant, AppendKv::none), arch);
  for (const char* variant : {"rope_interleaved", "llama31_rope", "qk_norm"})
    for (const int head_dim : {56, 256}) add(config_of(variant, AppendKv::none, head_dim, 0, DType::f16), "sm_90a");
  check_all(jobs);
}

TEST_CASE("merge_states compiles for every architecture, dtype and width", "[engine][merge_states][compile]") {
  std::vector<Job> jobs;
  const auto add = [&](const MergeConfig& config, const std::string& arch) {
    jobs.push_back({fmt::format("merge_states of {} {}", name_of(config.state_dtype), config.head_dim), arch,
                    [=](KernelCache& cache, Compiler& compiler, const std::string& name) {
                      return build_merge_states(cache, compiler, config, name);
                    }});
  };
  for (const std::string& arch : kArchs) add({.head_dim = 128}, arch);
  for (const DType states : {DType::f32, DType::bf16, DType::f16})
    for (const DType result : {DType::f32, DType::bf16, DType::f16})
      add({.head_dim = 80, .state_dtype = states, .o_dtype = result}, "sm_90a");
  for (const int head_dim : {8, 256, 512}) add({.head_dim = head_dim, .state_dtype = DType::bf16}, "sm_90a");
  check_all(jobs);
}

TEST_CASE("append_kv: transform leaves its hooks out of the kernels that read, and no others", "[engine][append_kv]") {
  const VariantRegistry variants;
  const Variant& rope = variants.at("rope");
  const auto unit = [&](AppendKv mode) {
    return render_gpu_unit(Pipeline::decode, rope, rope.resolve({}), config_of("rope", mode), {16, 64, 4, 2, 1, 0}).text;
  };
  const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; };
  for (const AppendKv mode : {AppendKv::none, AppendKv::copy}) {
    CHECK(has(unit(mode), "has_key_transform = true"));
    CHECK(has(unit(mode), "has_query_transform = true"));
  }
  CHECK(has(unit(AppendKv::transform), "has_key_transform = false"));
  CHECK(has(unit(AppendKv::transform), "has_query_transform = true"));
  const auto append_unit = [&](AppendKv mode) {
    return render_append_kv_unit(rope, rope.resolve({}), config_of("rope", mode)).text;
  };
  CHECK(has(append_unit(AppendKv::transform), "has_key_transform = true"));
  CHECK(has(append_unit(AppendKv::copy), "has_key_transform = false"));
}
