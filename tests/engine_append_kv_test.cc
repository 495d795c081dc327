// append_kv on the CPU device against its definition, and what attention makes of what it stored.
#include <sys/mman.h>

#include "runtime/host_compiler.h"
#include "tests/append_case.h"
#include "tests/append_step.h"
#include "tests/catch.h"
#include "tests/draw.h"
#include "tests/engine_support.h"
#include "tests/variant_formulas.h"

using namespace heddle;
using namespace heddle_tests;
using tools::Random;

namespace {

AttentionConfig random_append_config(Random& random, const std::string& variant, AppendKv mode) {
  const int kv_heads = pick(random, {1, 2, 3, 8}), group = pick(random, {1, 3, 4, 7, 20});
  const DType dtype = random.below(3) ? DType::bf16 : DType::f16;
  return {.variant = variant,
          .num_qo_heads = kv_heads * group,
          .num_kv_heads = kv_heads,
          .head_dim = pick(random, {16, 56, 64, 72, 80, 128}),
          .head_dim_vo = pick(random, {0, 0, 0, 24, 128}),
          .q_dtype = dtype,
          .kv_dtype = dtype,
          .page_size = pick(random, {0, 1, 5, 16, 64}),
          .max_qo_len = random.below(4) ? 0 : 16 / group > 0 ? 16 / group : 1,
          .batch_invariant = random.below(3) == 0,
          .append_kv = mode};
}

// Plans and appends; what is wrong then, or nothing.
std::string append(Engine& engine, const AppendShape& shape, std::uint64_t seed, const std::map<std::string, Tensor>& own = {},
                   const AppendCase::Turn& key = nullptr, const AppendCase::Turn& value = nullptr, double allowed = 0) {
  Attention attention = engine.attention(shape.config);
  AppendCase data(engine, shape, seed);
  Workspace workspace = attention.workspace(data.maxima());
  attention.plan(data.batch(), workspace);
  AppendTensors tensors = data.tensors();
  tensors.variant = own;
  attention.append_kv(workspace, tensors);
  return data.verdict(key, value, allowed);
}

}  // namespace

TEST_CASE("append_kv: every new row stands in its place, and nothing else is written", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  for (int i = 0; i < 300; ++i) {
    Random random(900 + i);
    const AppendShape shape = random_append(random, random_append_config(random, i % 2 ? "causal" : "rope", AppendKv::copy));
    INFO("seed " << i << ": " << shape.describe());
    REQUIRE(append(engine, shape, i) == "");
  }
}

TEST_CASE("append_kv: the verdict of the test sees a row that was not stored", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  const AppendShape shape{.config = {.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 16, .append_kv = AppendKv::copy},
                          .qo_lens = {1}, .kv_lens = {20}};
  const AppendCase data(engine, shape, 1);
  CHECK(data.verdict().find("k: request 0 position 19 head 0") == 0);
}

TEST_CASE("append_kv: a batch without new rows writes nothing", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  const AttentionConfig config{.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .append_kv = AppendKv::copy};
  CHECK(append(engine, {.config = config, .qo_lens = {0, 0}, .kv_lens = {33, 0}}, 3) == "");
}

TEST_CASE("append_kv: bits that are no number are stored as they are", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  const AttentionConfig config{.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 16, .page_size = 0, .append_kv = AppendKv::copy};
  Attention attention = engine.attention(config);
  Workspace workspace = attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 2});
  const std::vector<std::int32_t> qo{0, 1}, kv{0, 2};
  attention.plan({qo, kv}, workspace);
  alignas(16) std::uint16_t rows[16], k[32] = {}, v[32] = {};
  for (int d = 0; d < 16; ++d) rows[d] = std::uint16_t(0x7f81 + d);  // signalling NaNs
  const Tensor from = tools::tensor_of(rows, DType::bf16, {1, 1, 16});
  attention.append_kv(workspace, {.new_k = from, .new_v = from, .k = tools::tensor_of(k, DType::bf16, {2, 1, 16}),
                                  .v = tools::tensor_of(v, DType::bf16, {2, 1, 16})});
  CHECK(std::equal(rows, rows + 16, k + 16));
  CHECK(std::equal(rows, rows + 16, v + 16));
  CHECK(std::all_of(k, k + 16, [](std::uint16_t x) { return x == 0; }));
}

TEST_CASE("append_kv: a page more than 2^32 elements from the first", "[engine][append_kv]") {
  constexpr std::int64_t kStride = 1 << 16, kLast = (1 << 16) + 1;  // of pages; the last page's id
  const std::size_t bytes = (kLast + 1) * kStride * 2;
  void* pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pool != MAP_FAILED);  // 8 GB of addresses, of which three pages become memory
  Engine engine = cpu_engine();
  Attention attention = engine.attention({.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 16, .page_size = 1, .append_kv = AppendKv::copy});
  Workspace workspace = attention.workspace({.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 2});
  const std::vector<std::int32_t> qo{0, 1}, kv{0, 2}, last{1}, pages{0, kLast};
  attention.plan({qo, kv, last}, workspace);
  alignas(16) std::uint16_t row[16];
  std::fill(row, row + 16, 0x1234);
  const Tensor rows = tools::tensor_of(row, DType::bf16, {1, 1, 16});
  const Tensor k{pool, DType::bf16, 4, {kLast + 1, 1, 1, 16}, {kStride, 16, 16, 1}};
  Tensor v = k;
  v.data = static_cast<std::uint16_t*>(pool) + 32;
  attention.append_kv(workspace, {.new_k = rows, .new_v = rows, .k = k, .v = v, .kv_indices = pages.data()});
  const auto* stored = static_cast<const std::uint16_t*>(pool);
  CHECK(std::equal(row, row + 16, stored + kLast * kStride));
  CHECK(std::equal(row, row + 16, stored + kLast * kStride + 32));
  CHECK(stored[kLast * kStride % (std::int64_t{1} << 32)] == 0);  // where 32 bits would have led
  munmap(pool, bytes);
}

TEST_CASE("append_kv: transform stores keys as the variant's own formula turns them", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  for (const char* name : {"rope", "rope_interleaved", "llama31_rope", "qk_norm"}) {
    const Variant& variant = engine.variants().at(name);
    for (int i = 0; i < 12; ++i) {
      Random random(40 + i);
      const AppendShape shape = random_append(random, random_append_config(random, name, AppendKv::transform));
      INFO(name << ", seed " << i << ": " << shape.describe());
      const tools::VariantTensors own(engine, variant, tools::shape_words(shape.config, shape.qo_lens, shape.kv_lens), {}, i);
      const Given given(variant, 0, variant.resolve({}), own.on_host());
      const auto key = [&](const Row& row, int kv_pos) { return formulas().at(name).key(row, kv_pos, given); };
      REQUIRE(append(engine, shape, i, own.on_device(), key, nullptr, 2e-4) == "");
    }
  }
}

TEST_CASE("append_kv: a value_transform is applied, and a rotary_dim that halves no 16 bytes", "[engine][append_kv]") {
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return;
  }
  Engine engine = cpu_engine();
  add_spec(engine, R"({"name": "scaled", "params": {"by": {"type": "f32", "default": 0.5}}, "hooks": {
      "value_transform": "return x * params.by + kv_pos + 100.0f * kv_head;"}})");
  const AttentionConfig config{.variant = "scaled", .num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 64,
                               .append_kv = AppendKv::transform};
  const auto value = [](const std::vector<double>& row, int kv_pos) {
    std::vector<double> out;
    for (const double x : row) out.push_back(x * 0.5 + kv_pos);
    return out;
  };
  CHECK(append(engine, {.config = config, .qo_lens = {3, 0, 9}, .kv_lens = {5, 7, 40}}, 2, {}, nullptr, value, 1e-6) == "");

  AttentionConfig partial = config;
  partial.variant = "rope", partial.constants = {{"rotary_dim", 20}};
  const Variant& rope = engine.variants().at("rope");
  const Given given(rope, 0, rope.resolve(partial.constants), {});
  const auto key = [&](const Row& row, int kv_pos) { return formulas().at("rope").key(row, kv_pos, given); };
  CHECK(append(engine, {.config = partial, .qo_lens = {3, 0, 9}, .kv_lens = {5, 7, 40}}, 2, {}, key, nullptr, 2e-4) == "");
}

// A prompt and then single tokens, appended and attended to; the output of every step.
std::vector<std::uint16_t> serve(Engine& engine, AttentionConfig config, AppendKv mode) {
  config.append_kv = mode;
  Attention attention = engine.attention(config);
  Workspace workspace = attention.workspace({.max_requests = 2, .max_qo_rows = 64, .max_kv_tokens = 256});
  const int heads = config.num_kv_heads, dim = config.head_dim, q_heads = config.num_qo_heads;
  std::vector<std::int32_t> pages;
  for (int i = 0; i < 16; ++i) pages.push_back(i * 5 % 16);
  tools::DeviceMemory k(engine, 16 * 16 * heads * dim * 2), v(engine, k.bytes());
  const std::vector<std::byte> nan(k.bytes(), std::byte{0xff});
  k.write(0, nan), v.write(0, nan);
  const std::int64_t kRows = 64;
  tools::DeviceMemory q(engine, kRows * q_heads * dim * 2), o(engine, q.bytes());
  tools::DeviceMemory new_k(engine, kRows * heads * dim * 2), new_v(engine, new_k.bytes());
  const tools::VariantTensors own(engine, attention.variant(), tools::shape_words(config, {}, {}), {}, 5);
  std::vector<std::uint16_t> all;
  int kv[2] = {0, 0};
  for (int step = 0; step < 4; ++step) {
    const std::int32_t qo[2] = {step == 0 ? 37 : 1, step == 1 ? 0 : step == 0 ? 9 : 3};
    for (auto [memory, seed] : {std::pair{&q, 1}, {&new_k, 2}, {&new_v, 3}}) {
      std::vector<std::uint16_t> values(memory->bytes() / 2);
      tools::NormalSource(config.kv_dtype, seed + 10 * step).fill(values.data(), values.size());
      memory->write(0, std::as_bytes(std::span(values)));
    }
    const std::vector<std::int32_t> qo_indptr{0, qo[0], qo[0] + qo[1]}, kv_lens{kv[0] += qo[0], kv[1] += qo[1]};
    attention.plan({.qo_indptr = qo_indptr, .kv_table_stride = 8, .kv_lens = kv_lens}, workspace);
    const Tensor pool_k = tools::tensor_of(k.data(), config.kv_dtype, {16, 16, heads, dim});
    const Tensor pool_v = tools::tensor_of(v.data(), config.kv_dtype, {16, 16, heads, dim});
    AppendTensors rows{.new_k = tools::tensor_of(new_k.data(), config.kv_dtype, {kRows, heads, dim}),
                       .new_v = tools::tensor_of(new_v.data(), config.kv_dtype, {kRows, heads, dim}),
                       .k = pool_k, .v = pool_v, .kv_indices = pages.data()};
    if (mode == AppendKv::transform) rows.variant = own.on_device();
    attention.append_kv(workspace, rows);
    const Tensor q_rows = tools::tensor_of(q.data(), config.q_dtype, {kRows, q_heads, dim});
    Tensor o_rows = q_rows;
    o_rows.data = o.data();
    attention.run(workspace, {.q = q_rows, .k = pool_k, .v = pool_v, .o = o_rows, .kv_indices = pages.data(),
                              .variant = own.on_device()});
    std::vector<std::uint16_t> out(std::size_t(qo[0] + qo[1]) * q_heads * dim);
    o.read(0, std::as_writable_bytes(std::span(out)));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

TEST_CASE("append_kv: keys turned once on the way in or at each read give the same bits", "[engine][append_kv]") {
  Engine engine = cpu_engine();
  for (const char* variant : {"rope", "rope_interleaved", "llama31_rope", "qk_norm"}) {
    INFO(variant);
    const AttentionConfig config{.variant = variant, .num_qo_heads = 6, .num_kv_heads = 2, .head_dim = 64};
    const auto copied = serve(engine, config, AppendKv::copy), turned = serve(engine, config, AppendKv::transform);
    CHECK(copied == turned);
    for (const std::uint16_t bits : copied) REQUIRE((bits & 0x7f80) != 0x7f80);  // no NaN of an unused slot
  }
}

TEST_CASE("append_kv: attention over the rows that it stored is the reference's over the rows that were given",
          "[engine][append_kv]") {
  Engine engine = cpu_engine();
  for (const AppendStep& step : append_steps()) {
    const tools::StepCheck check = append_and_attend(engine, step);
    INFO(step.config.variant << ": " << check.problem());
    CHECK(check.ok());
  }
}
