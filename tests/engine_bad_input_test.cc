// Every wrong config, batch, workspace, tensor and param gets one full sentence before anything is
// launched, and afterwards the engine works as before: each group ends with a good run.
#include <limits>

#include <fmt/format.h>

#include "runtime/host_compiler.h"
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/problem.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

AttentionConfig good_config(int page_size = 16) {
  return {.variant = "sliding_window",
          .num_qo_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .page_size = page_size};
}

// An Attention with a plan that is ready to run, to make one mistake with at a time.
struct Bench {
  Engine engine = cpu_engine();
  Attention attention;
  Problem problem;
  Workspace workspace;

  explicit Bench(const AttentionConfig& config = good_config(), const ParamValues& params = {})
      : attention(engine.attention(config)),
        problem(engine,
                {.config = config,
                 .params = params,
                 .qo_lens = {1, 5, 2},
                 .kv_lens = {40, 0, 90},
                 .want_lse = config.variant != "sigmoid"},
                7),
        workspace(attention.workspace(problem.maxima())) {
    plan();
  }

  const ParamValues& params() const { return problem.shape().params; }
  void plan() { attention.plan(problem.batch(), workspace, nullptr, params()); }
  std::string run(const Tensors& tensors) {
    return sentence_of([&] { attention.run(workspace, tensors, params()); });
  }
  bool works() {
    problem.poison_output();
    plan_and_run(attention, workspace, problem);
    return problem.judge().ok;
  }
};

template <class Subject>
struct Mistake {
  void (*make)(Subject&);
  const char* sentence;
};

using ConfigMistake = Mistake<AttentionConfig>;
using TensorMistake = Mistake<Tensors>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// clang-format off
const ConfigMistake kConfigMistakes[] = {
    {[](AttentionConfig& c) { c.num_qo_heads = 0; }, "num_qo_heads is 0; it must be at least 1."},
    {[](AttentionConfig& c) { c.num_kv_heads = -2; }, "num_kv_heads is -2; it must be at least 1."},
    {[](AttentionConfig& c) { c.head_dim = 0; }, "head_dim is 0; it must be at least 1."},
    {[](AttentionConfig& c) { c = {}; }, "num_qo_heads is 0; it must be at least 1."},
    {[](AttentionConfig& c) { c.num_qo_heads = 5; }, "num_qo_heads 5 is not a multiple of num_kv_heads 2."},
    {[](AttentionConfig& c) { c.num_qo_heads = 1; }, "num_qo_heads 1 is not a multiple of num_kv_heads 2."},
    {[](AttentionConfig& c) { c.head_dim = 68; },
     "head_dim 68 is not supported; it must be a multiple of 8 up to 256."},
    {[](AttentionConfig& c) { c.head_dim = 272; },
     "head_dim 272 is not supported; it must be a multiple of 8 up to 256."},
    {[](AttentionConfig& c) { c.head_dim_vo = -8; },
     "head_dim_vo is -8; it must be at least 1, or 0 for that of q and k."},
    {[](AttentionConfig& c) { c.head_dim_vo = 36; },
     "head_dim_vo 36 is not supported; it must be a multiple of 8 up to 256."},
    {[](AttentionConfig& c) { c.head_dim_vo = 512; },
     "head_dim_vo 512 is not supported; it must be a multiple of 8 up to 256."},
    {[](AttentionConfig& c) { c.q_dtype = DType::f32; },
     "dtype f32 is not supported for q, k and v; bf16 and f16 are."},
    {[](AttentionConfig& c) { c.kv_dtype = DType::u8; },
     "dtype u8 is not supported for q, k and v; bf16 and f16 are."},
    {[](AttentionConfig& c) { c.q_dtype = DType::f16; },
     "q_dtype f16 and kv_dtype bf16 differ; they must be equal."},
    {[](AttentionConfig& c) { c.page_size = -1; }, "page_size is -1; it must be at least 1, or 0 for ragged K/V."},
    {[](AttentionConfig& c) { c.sm_scale = -0.5f; },
     "sm_scale is -0.5; it must be finite and above 0 (0 stands for 1 / sqrt(head_dim))."},
    {[](AttentionConfig& c) { c.sm_scale = kNan; },
     "sm_scale is nan; it must be finite and above 0 (0 stands for 1 / sqrt(head_dim))."},
    {[](AttentionConfig& c) { c.sm_scale = kInfinity; },
     "sm_scale is inf; it must be finite and above 0 (0 stands for 1 / sqrt(head_dim))."},
    {[](AttentionConfig& c) { c.max_qo_len = -1; }, "max_qo_len is -1; it must be at least 1, or 0 for any."},
    {[](AttentionConfig& c) { c.max_requests = -1; }, "max_requests is -1; it must be at least 1, or 0 for any."},
    {[](AttentionConfig& c) { c.variant = "sofmax"; },
     "There is no variant \"sofmax\"; the nearest valid one is softmax (allowed: NAMES)."},
    {[](AttentionConfig& c) { c.variant = ""; },
     "There is no variant \"\"; the nearest valid one is rope (allowed: NAMES)."},
    {[](AttentionConfig& c) { c.constants = {{"window", 3}}; },
     "Param \"window\" of variant sliding_window is not a constant; give it to plan() and run()."},
    {[](AttentionConfig& c) { c.constants = {{"windov", 3}}; },
     "The variant sliding_window has no param \"windov\"; the nearest valid one is window (allowed: window)."},
    {[](AttentionConfig& c) { c.variant = "causal", c.constants = {{"cap", 3}}; },
     "The variant causal has no param \"cap\"; none are declared."},
};

const TensorMistake kTensorMistakes[] = {
    {[](Tensors& t) { t.q = {}; }, "Tensor q has no data."},
    {[](Tensors& t) { t.o.data = nullptr; }, "Tensor o has no data."},
    {[](Tensors& t) { t.k.data = nullptr; }, "Tensor k has no data."},
    {[](Tensors& t) { t.v.data = nullptr; }, "Tensor v has no data."},
    {[](Tensors& t) { t.q.dtype = DType::f16; }, "Tensor q holds f16; this Attention was made for bf16."},
    {[](Tensors& t) { t.o.dtype = DType::f32; }, "Tensor o holds f32; this Attention was made for bf16."},
    {[](Tensors& t) { t.k.dtype = DType::u8; }, "Tensor k holds u8; this Attention was made for bf16."},
    {[](Tensors& t) { t.v.dtype = DType::i32; }, "Tensor v holds i32; this Attention was made for bf16."},
    {[](Tensors& t) { t.lse.dtype = DType::bf16; }, "Tensor lse holds bf16; this Attention was made for f32."},
    {[](Tensors& t) { t.q.rank = 2; }, "Tensor q has 2 axes; it needs 3."},
    {[](Tensors& t) { t.o.rank = 4; }, "Tensor o has 4 axes; it needs 3."},
    {[](Tensors& t) { t.k.rank = 3; }, "Tensor k has 3 axes; it needs 4."},
    {[](Tensors& t) { t.v.rank = 0; }, "Tensor v has 0 axes; it needs 4."},
    {[](Tensors& t) { t.lse.rank = 3; }, "Tensor lse has 3 axes; it needs 2."},
    {[](Tensors& t) { t.q.shape[0] = -1; }, "Tensor q has -1 elements on axis 0; that cannot be negative."},
    {[](Tensors& t) { t.k.shape[0] = -7; }, "Tensor k has -7 elements on axis 0; that cannot be negative."},
    {[](Tensors& t) { t.q.shape[0] = 7; }, "Tensor q has rows = 7; it needs at least 8."},
    {[](Tensors& t) { t.o.shape[0] = 0; }, "Tensor o has rows = 0; it needs at least 8."},
    {[](Tensors& t) { t.lse.shape[0] = 3; }, "Tensor lse has rows = 3; it needs at least 8."},
    {[](Tensors& t) { t.q.shape[1] = 8; }, "Tensor q has num_qo_heads = 8; it needs 4."},
    {[](Tensors& t) { t.o.shape[1] = 2; }, "Tensor o has num_qo_heads = 2; it needs 4."},
    {[](Tensors& t) { t.lse.shape[1] = 2; }, "Tensor lse has num_qo_heads = 2; it needs 4."},
    {[](Tensors& t) { t.q.shape[2] = 128; }, "Tensor q has head_dim = 128; it needs 64."},
    {[](Tensors& t) { t.k.shape[1] = 8; }, "Tensor k has page_size = 8; it needs 16."},
    {[](Tensors& t) { t.v.shape[2] = 4; }, "Tensor v has num_kv_heads = 4; it needs 2."},
    {[](Tensors& t) { t.v.shape[3] = 32; }, "Tensor v has head_dim = 32; it needs 64."},
    {[](Tensors& t) { t.layout = KvLayout::HND; }, "Tensor k has page_size = 2; it needs 16."},
    {[](Tensors& t) { t.q.strides[2] = 2; },
     "Tensor q has stride 2 on its last axis; rows must be contiguous (stride 1)."},
    {[](Tensors& t) { t.v.strides[3] = 0; },
     "Tensor v has stride 0 on its last axis; rows must be contiguous (stride 1)."},
    {[](Tensors& t) { t.q.strides[1] = 68; },
     "Tensor q has stride 68 on axis 1; strides must be multiples of 8 elements (16 bytes)."},
    {[](Tensors& t) { t.k.strides[0] += 4; },
     "Tensor k has stride STRIDE on axis 0; strides must be multiples of 8 elements (16 bytes)."},
    {[](Tensors& t) { t.q.data = static_cast<char*>(t.q.data) + 8; },
     "Tensor q starts at ADDRESS, which is not a multiple of 16 bytes."},
    {[](Tensors& t) { t.kv_indices = nullptr; }, "The plan reaches 9 page ids, but kv_indices was not given."},
    {[](Tensors& t) { t.variant["slopes"] = t.lse; },
     "Variant sliding_window reads no tensor named \"slopes\"."},
};
// clang-format on

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? text : text.replace(at, word.size(), by);
}

bool has_compiler() {
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was checked: " << *why);
    return false;
  }
  return true;
}

constexpr const char* kTunedSpec = R"({
  "name": "tuned",
  "params": {
    "gain": {"type": "f32", "min": 0, "max": 8},
    "left": {"type": "i32", "default": 50, "min": 0},
    "factor": {"type": "f32", "default": 1, "constant": true}
  },
  "tensors": {
    "slopes": {"dtype": "f32", "shape": ["num_qo_heads"]},
    "table": {"dtype": "bf16", "shape": ["num_requests", 16]},
    "far": {"dtype": "u8", "shape": ["kv_len"]}
  },
  "mask": {"window_left": "left"},
  "hooks": {"logits_transform":
    "return params.factor * params.gain * logit + tensors.slopes[qo_head] + tensors.table(request, kv_pos % 16) + tensors.far[kv_pos];"}
})";

// A variant with params and tensors of its own, planned and with everything at hand.
struct TunedBench {
  Engine engine = cpu_engine();
  Attention attention;
  std::unique_ptr<Problem> problem;
  std::unique_ptr<tools::VariantTensors> own;
  Workspace workspace;
  const ParamValues params{{"gain", 2}};

  TunedBench() {
    add_spec(engine, kTunedSpec);
    AttentionConfig config = good_config();
    config.variant = "tuned";
    attention = engine.attention(config);
    problem = std::make_unique<Problem>(
        engine, ProblemShape{.config = config, .params = params, .qo_lens = {1, 2}, .kv_lens = {10, 20}},
        3);
    own = std::make_unique<tools::VariantTensors>(
        engine, attention.variant(),
        ShapeWords{.num_qo_heads = 4, .num_requests = 2, .kv_len = 20}, params, 4);
    workspace = attention.workspace(problem->maxima());
    attention.plan(problem->batch(), workspace, nullptr, params);
  }

  Tensors tensors() const {
    Tensors tensors = problem->tensors();
    tensors.variant = own->on_device();
    return tensors;
  }
  std::string run(const Tensors& tensors, const ParamValues& values) {
    return sentence_of([&] { attention.run(workspace, tensors, values); });
  }
  std::string plan(const ParamValues& values) {
    return sentence_of([&] { attention.plan(problem->batch(), workspace, nullptr, values); });
  }
};

// clang-format off
const TensorMistake kVariantTensorMistakes[] = {
    {[](Tensors& t) { t.variant.erase("slopes"); },
     "Variant tuned reads a tensor \"slopes\" (f32), which was not given."},
    {[](Tensors& t) { t.variant["table"].data = nullptr; },
     "Variant tuned reads a tensor \"table\" (bf16), which was not given."},
    {[](Tensors& t) { t.variant["slope"] = t.variant["slopes"]; },
     "Variant tuned reads no tensor named \"slope\"."},
    {[](Tensors& t) { t.variant["slopes"].dtype = DType::bf16; },
     "Tensor \"slopes\" of variant tuned holds bf16; its spec says f32."},
    {[](Tensors& t) { t.variant["table"].dtype = DType::f16; },
     "Tensor \"table\" of variant tuned holds f16; its spec says bf16."},
    {[](Tensors& t) { t.variant["slopes"].rank = 2; },
     "Tensor \"slopes\" of variant tuned has 2 axes; its spec says 1."},
    {[](Tensors& t) { t.variant["slopes"].shape[0] = 3; },
     "Tensor \"slopes\" of variant tuned has 3 elements on axis 0; num_qo_heads asks for at least 4."},
    {[](Tensors& t) { t.variant["table"].shape[0] = 1; },
     "Tensor \"table\" of variant tuned has 1 elements on axis 0; num_requests asks for at least 2."},
    {[](Tensors& t) { t.variant["table"].shape[1] = 8; },
     "Tensor \"table\" of variant tuned has 8 elements on axis 1; 16 asks for at least 16."},
    {[](Tensors& t) { t.variant["table"].strides[1] = 2; },
     "Tensor \"table\" of variant tuned has stride 2 on its last axis; the last of several axes must be contiguous (stride 1)."},
    {[](Tensors& t) { t.variant["far"].shape[0] = 19; },
     "Tensor \"far\" of variant tuned has 19 elements on axis 0; kv_len asks for at least 20."},
};

struct ParamMistake {
  ParamValues values;
  const char* sentence;
};
const ParamMistake kParamMistakes[] = {
    {{}, "The param gain of the variant tuned has no default; give it a value."},
    {{{"gain", 2}, {"gian", 2}},
     "The variant tuned has no param \"gian\"; the nearest valid one is gain (allowed: gain, left, factor)."},
    {{{"gain", -1}}, "The param gain of the variant tuned is -1, but it must be at least 0."},
    {{{"gain", 9}}, "The param gain of the variant tuned is 9, but it must be at most 8."},
    {{{"gain", kNan}},
     "The param gain of the variant tuned is nan, but it must be a finite f32, at most 3.4028235e+38 in size."},
    {{{"gain", 2}, {"left", 2.5}},
     "The param left of the variant tuned is 2.5, but it must be a whole number from -2147483648 to 2147483647."},
    {{{"gain", 2}, {"left", -1}}, "The param left of the variant tuned is -1, but it must be at least 0."},
    {{{"gain", 2}, {"factor", 2}},
     "Param \"factor\" of variant tuned is a constant; give it in AttentionConfig::constants."},
};

struct BatchMistake {
  std::vector<std::int32_t> qo_indptr, kv_indptr, last_page_len;
  const char* sentence;
};
const BatchMistake kBatchMistakes[] = {
    {{}, {}, {}, "qo_indptr is empty; it needs one entry more than the batch has requests, so a single 0 for none."},
    {{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {1, 1, 1, 1},
     "The batch has 4 requests; this workspace was made for max_requests = 3."},
    {{0, 5, 4}, {0, 1, 2}, {1, 1}, "Request 1: qo_indptr decreases from 5 to 4; it must never decrease."},
    {{0, 1, 9}, {0, 1, 2}, {1, 1},
     "Request 1: its 8 query rows bring the batch to 9; this workspace was made for max_qo_rows = 8."},
    {{0, 1, 2}, {0, 1, 10}, {1, 4},
     "Request 1: its 132 keys bring the batch to 133; this workspace was made for max_kv_tokens = 130."},
    {{0, 1, 2}, {0, 1, 2}, {1, 17},
     "Request 1: last_page_len is 17; with 1 pages of 16 keys it must be from 1 to 16."},
    {{0, 1, 2}, {0, 1, 1}, {1, 2}, "Request 1: last_page_len is 2; without a page it must be 0."},
    {{0, 1, 2}, {0, 1}, {1, 1},
     "kv_indptr has 2 entries; a batch of 2 requests (as qo_indptr says) needs 3."},
    {{0, 1}, {0, 2000000000}, {1},
     "Request 0: kv_len is 31999999985 (2000000000 pages of 16 keys); at most 2147418112 is allowed."},
};
// clang-format on

}  // namespace

TEST_CASE("bad input: a config that no kernel can serve", "[engine][bad]") {
  Bench bench;
  for (const ConfigMistake& mistake : kConfigMistakes) {
    AttentionConfig config = good_config();
    mistake.make(config);
    const std::vector<std::string> names = bench.engine.variants().names();
    CHECK(sentence_of([&] { bench.engine.attention(config); }) ==
          replaced(mistake.sentence, "NAMES", fmt::format("{}", fmt::join(names, ", "))));
  }
  CHECK(bench.works());
}

TEST_CASE("bad input: tensors against the config and the plan", "[engine][bad]") {
  Bench bench;
  for (const TensorMistake& mistake : kTensorMistakes) {
    Tensors tensors = bench.problem.tensors();
    mistake.make(tensors);
    std::string sentence = replaced(mistake.sentence, "ADDRESS", fmt::format("{}", tensors.q.data));
    sentence = replaced(sentence, "STRIDE", fmt::format("{}", tensors.k.strides[0]));
    CHECK(bench.run(tensors) == sentence);
  }
  CHECK(bench.works());
}

TEST_CASE("bad input: rows of v and o whose head_dim is not that of q and k", "[engine][bad]") {
  AttentionConfig config = good_config();
  config.head_dim_vo = 32;
  Bench bench(config);
  const auto run = [&](void (*change)(Tensors&)) {
    Tensors tensors = bench.problem.tensors();
    change(tensors);
    return bench.run(tensors);
  };
  CHECK(run([](Tensors& t) { t.v.shape[3] = 64; }) == "Tensor v has head_dim_vo = 64; it needs 32.");
  CHECK(run([](Tensors& t) { t.o.shape[2] = 64; }) == "Tensor o has head_dim_vo = 64; it needs 32.");
  CHECK(run([](Tensors& t) { t.k.shape[3] = 32; }) == "Tensor k has head_dim = 32; it needs 64.");
  CHECK(run([](Tensors& t) { t.q.shape[2] = 32; }) == "Tensor q has head_dim = 32; it needs 64.");
  CHECK(bench.works());
}

TEST_CASE("bad input: page ids at an odd address", "[engine][bad]") {
  Bench bench;
  Tensors tensors = bench.problem.tensors();
  const auto odd = reinterpret_cast<std::uintptr_t>(tensors.kv_indices) + 2;
  tensors.kv_indices = reinterpret_cast<const std::int32_t*>(odd);
  CHECK(bench.run(tensors) ==
        fmt::format("kv_indices starts at {}, which is not a multiple of 4 bytes.",
                    reinterpret_cast<const void*>(odd)));
  CHECK(bench.works());
}

TEST_CASE("bad input: lse and a variant's tensor at odd addresses", "[engine][bad]") {
  Bench bench;
  Tensors tensors = bench.problem.tensors();
  tensors.lse.data = static_cast<char*>(tensors.lse.data) + 2;
  CHECK(bench.run(tensors) ==
        fmt::format("Tensor lse starts at {}, which is not a multiple of 4 bytes.",
                    tensors.lse.data));
  CHECK(bench.works());
  if (!has_compiler()) return;
  TunedBench tuned;
  tensors = tuned.tensors();
  void*& table = tensors.variant["table"].data;
  table = static_cast<char*>(table) + 1;
  CHECK(tuned.run(tensors, tuned.params) ==
        fmt::format("Tensor \"table\" of variant tuned starts at {}, which is not a multiple of 2 "
                    "bytes.",
                    table));
  CHECK(tuned.run(tuned.tensors(), tuned.params) == "accepted");
}

TEST_CASE("bad input: an Attention that was never made", "[engine][bad]") {
  Attention none;
  const std::string sentence = "The Attention is empty; make one with Engine::attention().";
  Bench bench;
  CHECK(sentence_of([&] { none.workspace({}); }) == sentence);
  CHECK(sentence_of([&] { none.workspace_bytes({}); }) == sentence);
  CHECK(sentence_of([&] { none.plan({}, bench.workspace); }) == sentence);
  CHECK(sentence_of([&] { none.run(bench.workspace, {}); }) == sentence);
  CHECK(sentence_of([&] { none.config(); }) == sentence);
  CHECK(sentence_of([&] { none.variant(); }) == sentence);
  CHECK(sentence_of([&] { none.plan_config(); }) == sentence);
  CHECK(sentence_of([&] { none.kernels(); }) == sentence);
  CHECK(bench.works());
}

// An allocator likes to hand out the same address again.
TEST_CASE("bad input: a workspace whose Attention is gone", "[engine][bad]") {
  Engine engine = cpu_engine();
  const Maxima maxima{.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 16};
  const std::vector<std::int32_t> indptr{0, 1}, last_page_len{1};
  for (int i = 0; i < 20; ++i) {
    Workspace orphan = engine.attention(good_config()).workspace(maxima);
    AttentionConfig larger = good_config();
    larger.head_dim = 256;
    Attention later = engine.attention(larger);
    CHECK(sentence_of([&] {
            later.plan({.qo_indptr = indptr, .kv_indptr = indptr, .last_page_len = last_page_len},
                       orphan);
          }) == "The Workspace was made by another Attention; their tiles and sizes differ.");
  }
}

TEST_CASE("bad input: what only ragged K/V can get wrong", "[engine][bad]") {
  Bench bench(good_config(0));
  const std::int32_t id = 0;
  Tensors tensors = bench.problem.tensors();
  tensors.kv_indices = &id;
  CHECK(bench.run(tensors) ==
        "kv_indices was given, but this Attention was made for ragged K/V (page_size 0).");
  tensors = bench.problem.tensors();
  tensors.v.shape[0] = 129;
  CHECK(bench.run(tensors) == "Tensor v has rows = 129; it needs at least 130.");
  tensors = bench.problem.tensors();
  tensors.k.rank = 4;
  CHECK(bench.run(tensors) == "Tensor k has 4 axes; it needs 3.");
  CHECK(bench.works());
}

TEST_CASE("bad input: lse of a variant without softmax", "[engine][bad]") {
  AttentionConfig config = good_config();
  config.variant = "sigmoid";
  Bench bench(config);
  Tensors tensors = bench.problem.tensors();
  tensors.lse = tools::tensor_of(tensors.q.data, DType::f32, {8, 4});
  CHECK(bench.run(tensors) ==
        "Variant sigmoid has no softmax, so it has no lse to write; leave lse out.");
  CHECK(bench.works());
}

TEST_CASE("strides of axes with one element do not matter", "[engine][bad]") {
  AttentionConfig config = good_config();
  config.num_kv_heads = 1;
  Bench bench(config);
  Tensors tensors = bench.problem.tensors();
  tensors.k.strides[2] = 3;
  bench.problem.poison_output();
  CHECK(bench.run(tensors) == "accepted");
  CHECK(bench.problem.judge().ok);
}

TEST_CASE("bad input: workspaces", "[engine][bad]") {
  Bench bench;
  Attention twin = bench.engine.attention(good_config());
  Workspace none, unplanned = bench.attention.workspace(bench.problem.maxima());
  const auto plan = [&](Attention& attention, Workspace& workspace) {
    return sentence_of([&] { attention.plan(bench.problem.batch(), workspace); });
  };
  const auto run = [&](Attention& attention, Workspace& workspace) {
    return sentence_of([&] { attention.run(workspace, bench.problem.tensors()); });
  };
  const std::string empty = "The Workspace is empty; make one with Attention::workspace().";
  const std::string foreign =
      "The Workspace was made by another Attention; their tiles and sizes differ.";
  CHECK(plan(bench.attention, none) == empty);
  CHECK(run(bench.attention, none) == empty);
  CHECK(sentence_of([&] { none.bytes(); }) == empty);
  CHECK(sentence_of([&] { none.plan_bytes(); }) == empty);
  CHECK(plan(twin, bench.workspace) == foreign);
  CHECK(run(twin, bench.workspace) == foreign);
  CHECK(run(bench.attention, unplanned) == "run() was called before plan() on this Workspace.");
  CHECK(bench.works());
}

TEST_CASE("bad input: a workspace's maxima", "[engine][bad]") {
  Bench bench;
  AttentionConfig config = good_config();
  config.max_qo_len = 8;
  Attention decode_only = bench.engine.attention(config);
  const auto make = [](const Attention& attention, const Maxima& maxima) {
    return sentence_of([&] { attention.workspace(maxima); });
  };
  CHECK(make(bench.attention, {.max_requests = -1, .max_qo_rows = 1, .max_kv_tokens = 1}) ==
        "max_requests is -1; it must be from 0 to 16777216.");
  CHECK(make(bench.attention,
             {.max_requests = 1, .max_qo_rows = std::int64_t{1} << 31, .max_kv_tokens = 1}) ==
        "max_qo_rows is 2147483648; it must be from 0 to 2147483647.");
  CHECK(make(bench.attention, {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = -5}) ==
        "max_kv_tokens is -5; it must be from 0 to 1099511627776.");
  CHECK(make(decode_only,
             {.max_requests = 1, .max_qo_rows = 99, .max_kv_tokens = 1, .max_qo_len = 9}) ==
        "max_qo_len is 9, which makes 18 packed rows with 2 query heads to a kv head; without the "
        "append "
        "pipeline at most 16 rows are allowed.");
  config.max_requests = 4;
  const Attention of_few = bench.engine.attention(config);
  CHECK(make(of_few, {.max_requests = 5, .max_qo_rows = 8, .max_kv_tokens = 8}) ==
        "max_requests is 5; this Attention was made for max_requests = 4.");
  CHECK(sentence_of([&] { of_few.workspace_bytes({.max_requests = 5, .max_qo_rows = 8, .max_kv_tokens = 8}); }) ==
        "max_requests is 5; this Attention was made for max_requests = 4.");
  CHECK(make(of_few, {.max_requests = 4, .max_qo_rows = 8, .max_kv_tokens = 8}) == "accepted");
  CHECK(bench.works());
}

TEST_CASE("bad input: batches, and what is past the maxima", "[engine][bad]") {
  Bench bench;
  for (const BatchMistake& mistake : kBatchMistakes) {
    const Batch batch{.qo_indptr = mistake.qo_indptr,
                      .kv_indptr = mistake.kv_indptr,
                      .last_page_len = mistake.last_page_len};
    CHECK(sentence_of([&] { bench.attention.plan(batch, bench.workspace); }) == mistake.sentence);
  }
  CHECK(bench.works());
}

TEST_CASE("after a refused batch nothing runs until a good plan", "[engine][bad]") {
  Bench bench;
  const std::vector<std::int32_t> qo_indptr{0, 9};
  CHECK(sentence_of([&] { bench.attention.plan({.qo_indptr = qo_indptr}, bench.workspace); }) !=
        "accepted");
  CHECK(bench.run(bench.problem.tensors()) == "run() was called before plan() on this Workspace.");
  CHECK(bench.workspace.plan_bytes().empty());
  CHECK(bench.works());
}

TEST_CASE("bad input: a run with another window than the plan's", "[engine][bad]") {
  Bench bench(good_config(), {{"window", 16}});
  const auto run = [&](const ParamValues& params) {
    return sentence_of(
        [&] { bench.attention.run(bench.workspace, bench.problem.tensors(), params); });
  };
  CHECK(run({{"window", 5}}) ==
        "run() got params for window_left 5, window_right none, sink 0, but the plan was made for "
        "window_left 16, window_right none, sink 0; plan again.");
  CHECK(
      run({}) ==
      "run() got params for window_left 4096, window_right none, sink 0, but the plan was made for "
      "window_left 16, window_right none, sink 0; plan again.");
  CHECK(run({{"window", 16}}) == "accepted");
  CHECK(bench.works());
}

TEST_CASE("bad input: params at plan and at run", "[engine][bad]") {
  if (!has_compiler()) return;
  TunedBench bench;
  for (const ParamMistake& mistake : kParamMistakes) {
    CHECK(bench.run(bench.tensors(), mistake.values) == mistake.sentence);
    CHECK(bench.plan(mistake.values) == mistake.sentence);
  }
  CHECK(bench.run(bench.tensors(), bench.params) == "accepted");   // the old plan stands
  CHECK(bench.run(bench.tensors(), {{"gain", 3}}) == "accepted");  // no part of the mask
}

TEST_CASE("bad input: a variant's own tensors", "[engine][bad]") {
  if (!has_compiler()) return;
  TunedBench bench;
  for (const TensorMistake& mistake : kVariantTensorMistakes) {
    Tensors tensors = bench.tensors();
    mistake.make(tensors);
    CHECK(bench.run(tensors, bench.params) == mistake.sentence);
  }
  CHECK(bench.run(bench.tensors(), bench.params) == "accepted");
}

TEST_CASE("bad input: page ids outside the pool, when asked to look", "[engine][bad]") {
  Engine engine({.device = DeviceKind::cpu, .cache_dir = test_cache_dir(), .check_pages = true});
  Attention attention = engine.attention(good_config());
  Problem problem(engine, {.config = good_config(), .qo_lens = {1, 5, 2}, .kv_lens = {40, 0, 90}},
                  7);
  Workspace workspace = attention.workspace(problem.maxima());
  attention.plan(problem.batch(), workspace);
  const Tensors good = problem.tensors();
  for (const std::int32_t bad_id : {12, -1}) {
    std::vector<std::int32_t> ids(good.kv_indices, good.kv_indices + 9);
    ids[4] = bad_id;
    Tensors tensors = good;
    tensors.kv_indices = ids.data();
    CHECK(
        sentence_of([&] { attention.run(workspace, tensors); }) ==
        fmt::format("Request 2 names page {} as its page 1; the pool has pages 0 to 11.", bad_id));
  }
  problem.poison_output();
  plan_and_run(attention, workspace, problem);
  CHECK(problem.judge().ok);
}

TEST_CASE("bad input: a GPU where there is none", "[engine][bad]") {
  const Engine automatic;
  if (automatic.device().kind == DeviceKind::cuda) return;
  CHECK_THAT(sentence_of([] { Engine engine({.device = DeviceKind::cuda}); }),
             contains("There is no GPU to use: " + automatic.device().why_cpu + "."));
}
