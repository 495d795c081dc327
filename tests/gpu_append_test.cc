// append_kv and merge_states on the GPU: the definitions that hold the CPU device hold them too, and one
// captured graph serves every batch.
#include "engine/merge_states.h"
#include "runtime/driver.h"
#include "tests/append_case.h"
#include "tests/catch.h"
#include "tests/merge_case.h"
#include "tests/variant_formulas.h"
#include "tools/check.h"
#include "tools/step.h"
#include "tools/variant_tensors.h"

using namespace heddle;
using namespace heddle_tests;
using tools::Random;

namespace {

int pick(Random& random, std::initializer_list<int> values) { return values.begin()[random.below(int(values.size()))]; }

AttentionConfig random_append_config(Random& random, const std::string& variant, AppendKv mode) {
  const int kv_heads = pick(random, {1, 2, 3, 8}), group = pick(random, {1, 3, 4, 20});
  const DType dtype = random.below(3) ? DType::bf16 : DType::f16;
  return {.variant = variant, .num_qo_heads = kv_heads * group, .num_kv_heads = kv_heads,
          .head_dim = pick(random, {16, 64, 80, 128, 256}), .q_dtype = dtype, .kv_dtype = dtype,
          .page_size = pick(random, {0, 1, 5, 16, 64}), .batch_invariant = random.below(3) == 0, .append_kv = mode};
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
  for (int i = 0; i < 60; ++i) {
    Random random(900 + i);
    const AppendShape shape = random_append(random, random_append_config(random, "causal", AppendKv::copy));
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
    for (int i = 0; i < 8; ++i) {
      Random random(40 + i);
      AppendShape shape = random_append(random, random_append_config(random, name, AppendKv::transform));
      const bool is_partial = i % 2 == 0 && (shape.config.variant == "rope" || shape.config.variant == "rope_interleaved");
      if (is_partial) shape.config.constants = {{"rotary_dim", 12}};  // halves of which no 16 bytes are
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

namespace {

// K and V of one layer whose newest rows are NaN on the device, and those rows beside them.
struct FreshRows {
  tools::DeviceMemory k, v;

  FreshRows(const Engine& engine, const tools::KvCache& cache, const tools::StepBatch& batch) {
    const tools::KvShape& shape = cache.shape();
    const std::size_t row_bytes = std::size_t(shape.head_dim) * 2;
    const std::vector<std::byte> nan(row_bytes, std::byte{0xff});
    std::vector<std::uint16_t> new_k, new_v;
    for (const tools::StepRequest& r : batch.requests) {
      for (int pos = cache.kv_len(r.request) - r.qo_len; pos < cache.kv_len(r.request); ++pos) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          const std::int64_t at = cache.row_offset(r.request, pos, head);
          new_k.insert(new_k.end(), cache.host_k(0).begin() + at, cache.host_k(0).begin() + at + shape.head_dim);
          new_v.insert(new_v.end(), cache.host_v(0).begin() + at, cache.host_v(0).begin() + at + shape.head_dim);
          for (const Tensor& pool : {cache.k(0), cache.v(0)})
            copy_to_device(static_cast<std::uint16_t*>(pool.data) + at, nan.data(), row_bytes);
        }
      }
    }
    k = tools::DeviceMemory(engine, new_k.size() * 2), v = tools::DeviceMemory(engine, new_v.size() * 2);
    k.write(0, std::as_bytes(std::span(new_k))), v.write(0, std::as_bytes(std::span(new_v)));
  }
};

}  // namespace

TEST_CASE("append_kv: attention in the same graph reads what has just been stored", "[gpu][append_kv][graph]") {
  Engine engine;
  const AttentionConfig config{.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128, .append_kv = AppendKv::copy};
  Attention attention = engine.attention(config);
  tools::KvCache cache(engine, {.num_kv_heads = 2, .head_dim = 128, .page_size = 16}, 1, 200, 11);
  tools::QuerySide query(engine, 64, 8, 128, DType::bf16, 5);
  std::vector<tools::StepRequest> step;
  const std::pair<int, int> lengths[] = {{1, 900}, {40, 40}, {1, 1}, {9, 300}, {4, 77}};  // qo_len, kv_len
  for (int r = 0; r < 5; ++r) {
    cache.append(r, lengths[r].second);
    step.push_back({r, lengths[r].first});
  }
  cache.upload();
  query.refill(55);
  const tools::StepBatch batch(cache, step);
  const FreshRows rows(engine, cache, batch);
  tools::DeviceMemory indices(engine, batch.kv_indices.size() * 4);
  indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
  const auto* pages = static_cast<const std::int32_t*>(indices.data());
  Workspace workspace = attention.workspace({.max_requests = 5, .max_qo_rows = 64, .max_kv_tokens = 4096});
  const StreamHandle stream = StreamHandle::create();
  synchronize(nullptr);
  attention.plan(batch.batch(), workspace, stream.get());
  Graph::begin_capture(stream.get());
  attention.append_kv(workspace, {.new_k = tools::tensor_of(rows.k.data(), DType::bf16, {55, 2, 128}),
                                  .new_v = tools::tensor_of(rows.v.data(), DType::bf16, {55, 2, 128}),
                                  .k = cache.k(0), .v = cache.v(0), .kv_indices = pages}, {}, stream.get());
  attention.run(workspace, {.q = query.q(), .k = cache.k(0), .v = cache.v(0), .o = query.o(), .lse = query.lse(),
                            .kv_indices = pages}, {}, stream.get());
  const Graph graph = Graph::end_capture(stream.get());
  graph.launch(stream.get());
  stream.synchronize();
  const tools::StepCheck check = tools::check_step(engine, attention, {}, cache, 0, batch, query);
  INFO(check.problem());
  CHECK(check.ok());
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
