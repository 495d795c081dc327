// Whatever append_kv cannot honour is refused by name, before anything is written; afterwards the same
// handles work.
#include "tests/append_case.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

AttentionConfig good_config(AppendKv mode = AppendKv::copy, const char* variant = "qk_norm") {
  return {.variant = variant, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .append_kv = mode};
}

struct Bench {
  Engine engine = cpu_engine();
  Attention attention;
  AppendCase data;
  Workspace workspace;

  explicit Bench(const AttentionConfig& config = good_config())
      : attention(engine.attention(config)), data(engine, {.config = config, .qo_lens = {2, 0, 3}, .kv_lens = {40, 7, 3}}, 5),
        workspace(attention.workspace(data.maxima())) {
    attention.plan(data.batch(), workspace);
  }
  std::string append(const AppendTensors& tensors, const ParamValues& params = {}) {
    return sentence_of([&] { attention.append_kv(workspace, tensors, params); });
  }
};

struct Mistake {
  void (*make)(AppendTensors&);
  const char* sentence;
};

// clang-format off
const Mistake kMistakes[] = {
    {[](AppendTensors& t) { t.new_k = {}; }, "Tensor new_k has no data."},
    {[](AppendTensors& t) { t.new_v.data = nullptr; }, "Tensor new_v has no data."},
    {[](AppendTensors& t) { t.k.data = nullptr; }, "Tensor k has no data."},
    {[](AppendTensors& t) { t.v.data = nullptr; }, "Tensor v has no data."},
    {[](AppendTensors& t) { t.new_k.dtype = DType::f16; }, "Tensor new_k holds f16; this Attention was made for bf16."},
    {[](AppendTensors& t) { t.new_v.dtype = DType::f32; }, "Tensor new_v holds f32; this Attention was made for bf16."},
    {[](AppendTensors& t) { t.v.dtype = DType::u8; }, "Tensor v holds u8; this Attention was made for bf16."},
    {[](AppendTensors& t) { t.new_k.rank = 4; }, "Tensor new_k has 4 axes; it needs 3."},
    {[](AppendTensors& t) { t.k.rank = 3; }, "Tensor k has 3 axes; it needs 4."},
    {[](AppendTensors& t) { t.new_k.shape[0] = 4; }, "Tensor new_k has rows = 4; it needs at least 5."},
    {[](AppendTensors& t) { t.new_v.shape[0] = -1; }, "Tensor new_v has -1 elements on axis 0; that cannot be negative."},
    {[](AppendTensors& t) { t.new_v.shape[1] = 4; }, "Tensor new_v has num_kv_heads = 4; it needs 2."},
    {[](AppendTensors& t) { t.new_k.shape[2] = 128; }, "Tensor new_k has head_dim = 128; it needs 64."},
    {[](AppendTensors& t) { t.k.shape[1] = 8; }, "Tensor k has page_size = 8; it needs 16."},
    {[](AppendTensors& t) { t.layout = KvLayout::HND; }, "Tensor k has page_size = 2; it needs 16."},
    {[](AppendTensors& t) { t.new_k.strides[2] = 2; },
     "Tensor new_k has stride 2 on its last axis; rows must be contiguous (stride 1)."},
    {[](AppendTensors& t) { t.new_v.strides[1] = 68; },
     "Tensor new_v has stride 68 on axis 1; strides must be multiples of 8 elements (16 bytes)."},
    {[](AppendTensors& t) { t.k.strides[2] = 0; },
     "Tensor k has stride 0 on axis 2; append_kv writes there, so it must not be 0."},
    {[](AppendTensors& t) { t.v.strides[0] = 0; },
     "Tensor v has stride 0 on axis 0; append_kv writes there, so it must not be 0."},
    {[](AppendTensors& t) { t.new_k.data = t.k.data; },
     "Tensor new_k lies within the memory that tensor k reaches; append_kv reads the one and writes the other, so they must "
     "lie apart."},
    {[](AppendTensors& t) { t.new_v.data = static_cast<std::uint16_t*>(t.k.data) + 8 * 64; },
     "Tensor new_v lies within the memory that tensor k reaches; append_kv reads the one and writes the other, so they must "
     "lie apart."},
    {[](AppendTensors& t) { t.kv_indices = nullptr; }, "The plan reaches 5 page ids, but kv_indices was not given."},
    {[](AppendTensors& t) { t.variant["k_weight"] = t.k; },
     "append_kv() was given tensor \"k_weight\" of variant qk_norm, but with append_kv = copy it stores rows as they are and "
     "reads none."},
};
// clang-format on

}  // namespace

TEST_CASE("append_kv: each bad tensor is refused by its name", "[engine][append_kv][bad_input]") {
  Bench bench;
  for (const Mistake& mistake : kMistakes) {
    AppendTensors tensors = bench.data.tensors();
    mistake.make(tensors);
    CHECK(bench.append(tensors) == mistake.sentence);
  }
  AppendTensors shifted = bench.data.tensors();
  shifted.new_v.data = static_cast<char*>(shifted.new_v.data) + 2;
  CHECK(bench.append(shifted).find("which is not a multiple of 16 bytes.") != std::string::npos);
  bench.data.reset();
  CHECK(bench.append(bench.data.tensors()) == "accepted");
  CHECK(bench.data.verdict() == "");
}

TEST_CASE("append_kv: params and tensors are refused where none are read, and asked for where some are",
          "[engine][append_kv][bad_input]") {
  Bench copy;
  CHECK(copy.append(copy.data.tensors(), {{"eps", 1}}) ==
        "append_kv() was given param \"eps\", but with append_kv = copy it stores rows as they are and takes none.");
  Bench norm(good_config(AppendKv::transform));
  CHECK(norm.append(norm.data.tensors()) == "Variant qk_norm reads a tensor \"q_weight\" (f32), which was not given.");
  CHECK(norm.append(norm.data.tensors(), {{"epsilon", 1}}).find("no param \"epsilon\"") != std::string::npos);
  Bench rope(good_config(AppendKv::transform, "rope"));
  CHECK(rope.append(rope.data.tensors(), {{"theta", 0.5}}).find("theta") != std::string::npos);
  AppendTensors extra = rope.data.tensors();
  extra.variant["k_weight"] = extra.k;
  CHECK(rope.append(extra) == "Variant rope reads no tensor named \"k_weight\".");
}

TEST_CASE("append_kv: an Attention that was not made for it, or not planned, says so", "[engine][append_kv][bad_input]") {
  Bench none(good_config(AppendKv::none));
  CHECK(none.append(none.data.tensors()) ==
        "append_kv() was called on an Attention made with append_kv = none; make it with copy, or with transform for the "
        "variant's key_transform and value_transform to be applied there.");
  Bench bench;
  Workspace fresh = bench.attention.workspace(bench.data.maxima()), empty;
  CHECK(sentence_of([&] { bench.attention.append_kv(fresh, bench.data.tensors()); }) ==
        "append_kv() was called before plan() on this Workspace.");
  CHECK(sentence_of([&] { bench.attention.append_kv(empty, bench.data.tensors()); }) ==
        "The Workspace is empty; make one with Attention::workspace().");
  CHECK(sentence_of([&] { bench.attention.append_kv(none.workspace, bench.data.tensors()); }) ==
        "The Workspace was made by another Attention; their tiles and sizes differ.");
  CHECK(sentence_of([&] { Attention().append_kv(fresh, bench.data.tensors()); }) ==
        "The Attention is empty; make one with Engine::attention().");
}

TEST_CASE("append_kv: transform needs something to apply", "[engine][append_kv][bad_input]") {
  Engine engine = cpu_engine();
  CHECK(sentence_of([&] { engine.attention(good_config(AppendKv::transform, "causal")); }) ==
        "append_kv is transform, but variant causal has neither a key_transform nor a value_transform to apply; it may be "
        "copy or none.");
}

TEST_CASE("append_kv: a plan with more new rows than keys is refused where rows are appended, and only there",
          "[engine][append_kv][bad_input]") {
  Engine engine = cpu_engine();
  const std::vector<std::int32_t> qo{0, 1, 4}, kv{0, 1, 2}, last{1, 2};
  for (const AppendKv mode : {AppendKv::none, AppendKv::copy}) {
    Attention attention = engine.attention(good_config(mode));
    Workspace workspace = attention.workspace({.max_requests = 2, .max_qo_rows = 4, .max_kv_tokens = 64});
    const std::string said = sentence_of([&] { attention.plan({qo, kv, last}, workspace); });
    CHECK(said == (mode == AppendKv::none ? "accepted"
                                          : "Request 1 has qo_len 3 and kv_len 2; this Attention appends, and a request's "
                                            "kv_len counts its qo_len new keys."));
  }
}

TEST_CASE("append_kv: with check_pages a page id outside the pool is refused, and nothing is written",
          "[engine][append_kv][bad_input]") {
  Engine engine({.device = DeviceKind::cpu, .cache_dir = test_cache_dir(), .check_pages = true});
  const AttentionConfig config = good_config();
  Attention attention = engine.attention(config);
  AppendCase data(engine, {.config = config, .qo_lens = {1}, .kv_lens = {20}}, 5);
  Workspace workspace = attention.workspace(data.maxima());
  attention.plan(data.batch(), workspace);
  AppendTensors tensors = data.tensors();
  const std::vector<std::int32_t> wrong{1, 9};
  tensors.kv_indices = wrong.data();
  const std::vector<std::uint16_t> before = data.k_bits();
  CHECK(sentence_of([&] { attention.append_kv(workspace, tensors); }) ==
        "Request 0 names page 9 as its page 1; the pool has pages 0 to 3.");
  CHECK(data.k_bits() == before);
}
