// append_kv and merge_states on the GPU: the definitions that hold the CPU device hold them too, and one
// captured graph serves every batch.
#include "engine/merge_states.h"
#include "runtime/driver.h"
#include "tests/append_case.h"
#include "tests/append_step.h"
#include "tests/catch.h"
#include "tests/draw.h"
#include "tests/merge_case.h"
#include "tests/problem.h"
#include "tests/variant_formulas.h"
#include "tools/variant_tensors.h"

using namespace heddle;
using namespace heddle_tests;
using tools::Random;

namespace {

AttentionConfig random_append_config(Random& random, const std::string& variant, AppendKv mode) {
  const int kv_heads = pick(random, {1, 2, 3, 8}), group = pick(random, {1, 3, 4, 20});
  const DType dtype = random.below(3) ? DType::bf16 : DType::f16;
  return {.variant = variant, .num_qo_heads = kv_heads * group, .num_kv_heads = kv_heads,
          .head_dim = pick(random, {16, 56, 64, 72, 80, 128, 256}), .head_dim_vo = pick(random, {0, 0, 0, 24, 128}), .q_dtype = dtype, .kv_dtype = dtype,
          .page_size = pick(random, {0, 1, 5, 16, 64}), .batch_invariant = random.below(3) == 0, .append_kv = mode};
}

std::vector<AttentionConfig> configs_of(const std::vector<AppendShape>& shapes) {
  std::vector<AttentionConfig> configs;
  for (const AppendShape& shape : shapes) configs.push_back(shape.config);
  return configs;
}

void plan_and_append(Attention& attention, AppendCase& data, const std::map<std::string, Tensor>& own = {}) {
  Workspace workspace = attention.workspace(data.maxima());
  attention.plan(data.batch(), workspace);
  AppendTensors tensors = data.tensors();
  tensors.variant = own;
  attention.append_kv(workspace, tensors);
  synchronize(nullptr);
}

}  // namespace

TEST_CASE("append_kv: every new row stands in its place, and nothing else is written", "[gpu][append_kv]") {
  Engine engine;
  std::vector<AppendShape> shapes;
  for (int i = 0; i < 60; ++i) {
    Random random(900 + i);
    const AttentionConfig config = random_append_config(random, "causal", AppendKv::copy);
    shapes.push_back(random_append(random, config));
  }
  compile_all(engine, configs_of(shapes));
  for (int i = 0; i < 60; ++i) {
    const AppendShape& shape = shapes[i];
    INFO("seed " << i << ": " << shape.describe());
    Attention attention = engine.attention(shape.config);
    AppendCase data(engine, shape, i);
    plan_and_append(attention, data);
    REQUIRE(data.verdict() == "");
  }
}

TEST_CASE("append_kv: transform stores keys as the variant's own formula turns them", "[gpu][append_kv]") {
  Engine engine;
  for (const char* name : {"rope", "rope_interleaved", "llama31_rope", "qk_norm"}) {
    const Variant& variant = engine.variants().at(name);
    std::vector<AppendShape> shapes;
    for (int i = 0; i < 8; ++i) {
      Random random(40 + i);
      const AttentionConfig config = random_append_config(random, name, AppendKv::transform);
      shapes.push_back(random_append(random, config));
      const bool is_partial = i % 2 == 0 && (config.variant == "rope" || config.variant == "rope_interleaved");
      if (is_partial) shapes.back().config.constants = {{"rotary_dim", 12}};  // halves of which no 16 bytes are
    }
    compile_all(engine, configs_of(shapes));
    for (int i = 0; i < 8; ++i) {
      const AppendShape& shape = shapes[i];
      INFO(name << ", seed " << i << ": " << shape.describe());
      const tools::VariantTensors own(engine, variant, tools::shape_words(shape.config, shape.qo_lens, shape.kv_lens), {}, i);
      const Given given(variant, 0, variant.resolve(shape.config.constants), own.on_host());
      const auto key = [&](const Row& row, int kv_pos) { return formulas().at(name).key(row, kv_pos, given); };
      Attention attention = engine.attention(shape.config);
      AppendCase data(engine, shape, i);
      plan_and_append(attention, data, own.on_device());
      REQUIRE(data.verdict(key, nullptr, 5e-3) == "");  // positions up to 550, sine and cosine by the fast forms
    }
  }
}

TEST_CASE("append_kv: a page more than 2^32 elements from the first", "[gpu][append_kv]") {
  constexpr std::int64_t kStride = 1 << 16, kLast = (1 << 16) + 1;  // of pages; the last page's id
  Engine engine;
  const tools::DeviceMemory pool(engine, (kLast + 1) * kStride * 2);  // 8 GB
  Attention attention = engine.attention({.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 16, .page_size = 1, .append_kv = AppendKv::copy});
  Workspace workspace = attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 2});
  const std::vector<std::int32_t> qo{0, 1}, kv{0, 2}, last{1}, pages{0, kLast};
  attention.plan({qo, kv, last}, workspace);
  const std::vector<std::uint16_t> row(16, 0x1234);
  tools::DeviceMemory rows(engine, 32), indices(engine, 8);
  rows.write(0, std::as_bytes(std::span(row)));
  indices.write(0, std::as_bytes(std::span(pages)));
  const Tensor from = tools::tensor_of(rows.data(), DType::bf16, {1, 1, 16});
  const Tensor k{pool.data(), DType::bf16, 4, {kLast + 1, 1, 1, 16}, {kStride, 16, 16, 1}};
  Tensor v = k;
  v.data = static_cast<std::uint16_t*>(pool.data()) + 32;
  attention.append_kv(workspace, {.new_k = from, .new_v = from, .k = k, .v = v,
                                  .kv_indices = static_cast<const std::int32_t*>(indices.data())});
  synchronize(nullptr);
  for (const std::int64_t element : {kLast * kStride, kLast * kStride + 32}) {
    std::vector<std::uint16_t> stored(16);
    pool.read(element * 2, std::as_writable_bytes(std::span(stored)));
    CHECK(stored == row);
  }
}

TEST_CASE("append_kv: one capture serves every batch planned after it", "[gpu][append_kv][graph]") {
  Engine engine;
  const AttentionConfig config{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128, .append_kv = AppendKv::copy};
  const AppendShape largest{.config = config, .qo_lens = std::vector<int>(12, 100), .kv_lens = std::vector<int>(12, 600)};
  Attention attention = engine.attention(config);
  AppendCase data(engine, largest, 3);
  Workspace workspace = attention.workspace(data.maxima());
  const StreamHandle stream = StreamHandle::create();
  attention.plan(data.batch(), workspace, stream.get());
  Graph::begin_capture(stream.get());
  attention.append_kv(workspace, data.tensors(), {}, stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  Random random(5);
  for (int i = 0; i < 100; ++i) {
    std::vector<int> qo, kv;
    for (int r = random.below(13); r > 0; --r) {
      qo.push_back(random.below(3) ? 1 : random.below(101));
      kv.push_back(qo.back() + random.below(500));
    }
    data.take(qo, kv);
    data.reset();
    synchronize(nullptr);
    attention.plan(data.batch(), workspace, stream.get());
    graph.launch(stream.get());
    stream.synchronize();
    INFO("batch " << i);
    REQUIRE(data.verdict() == "");
  }
}

TEST_CASE("append_kv: attention in the same graph reads what has just been stored", "[gpu][append_kv][graph]") {
  Engine engine;
  for (const AppendStep& step : append_steps()) {
    const tools::StepCheck check = append_and_attend(engine, step);
    INFO(step.config.variant << ": " << check.problem());
    CHECK(check.ok());
  }
}

TEST_CASE("merge_states: any number of states, dtypes and strides, empty states among them", "[gpu][merge_states]") {
  Engine engine;
  for (int i = 0; i < 80; ++i) {
    Random random(i);
    const MergeShape shape = random_merge(random);
    INFO("seed " << i << ": " << shape.describe());
    MergeCase data(engine, shape, i);
    engine.merge_states(shape.config).run(data.states(), data.result());
    synchronize(nullptr);
    REQUIRE(data.verdict() == "");
  }
}

TEST_CASE("merge_states: in place, in a graph, and with more rows than the GPU holds", "[gpu][merge_states][graph]") {
  Engine engine;
  for (const int rows : {9, 20000}) {
    const MergeShape shape{.config = {.head_dim = 80, .o_dtype = DType::f32}, .num_states = 3, .num_rows = rows, .num_heads = 3};
    MergeCase apart(engine, shape, 4), in_place(engine, shape, 4);
    const MergeStates merge = engine.merge_states(shape.config);
    const StreamHandle stream = StreamHandle::create();
    synchronize(nullptr);
    Graph::begin_capture(stream.get());
    merge.run(apart.states(), apart.result(), stream.get());
    merge.run(in_place.states(), in_place.states()[1], stream.get());
    const Graph graph = Graph::end_capture(stream.get());
    graph.launch(stream.get());
    stream.synchronize();
    CHECK(apart.verdict() == "");
    CHECK(in_place.read(in_place.states()[1]) == apart.read(apart.result()));
  }
}
