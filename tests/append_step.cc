#include "tests/append_step.h"

#include <cstring>

#include "runtime/driver.h"
#include "tools/variant_tensors.h"

namespace heddle_tests {

using namespace heddle;
using tools::DeviceMemory;

namespace {

constexpr int kHeads = 2, kDim = 128, kPage = 16;

// The newest rows of a cache's one layer, taken out of its pages: NaN is left there.
struct FreshRows {
  DeviceMemory k, v;
  int count = 0;

  FreshRows(const Engine& engine, const tools::KvCache& cache, const tools::StepBatch& batch) {
    std::vector<std::uint16_t> new_k, new_v;
    for (const tools::StepRequest& r : batch.requests) {
      for (int pos = cache.kv_len(r.request) - r.qo_len; pos < cache.kv_len(r.request); ++pos, ++count) {
        for (int head = 0; head < kHeads; ++head) {
          const std::int64_t at = cache.row_index(r.request, pos, head) * kDim;
          take(engine, cache.host_k(0), cache.k(0), at, new_k);
          take(engine, cache.host_v(0), cache.v(0), at, new_v);
        }
      }
    }
    k = DeviceMemory(engine, new_k.size() * 2), v = DeviceMemory(engine, new_v.size() * 2);
    k.write(0, std::as_bytes(std::span(new_k))), v.write(0, std::as_bytes(std::span(new_v)));
  }

  static void take(const Engine& engine, const std::vector<std::uint16_t>& host, const Tensor& pool, std::int64_t at,
                   std::vector<std::uint16_t>& rows) {
    rows.insert(rows.end(), host.begin() + at, host.begin() + at + kDim);
    const std::vector<std::uint16_t> nan(kDim, tools::kHalfNan);
    std::uint16_t* slot = static_cast<std::uint16_t*>(pool.data) + at;
    if (engine.device().kind == DeviceKind::cuda)
      copy_to_device(slot, nan.data(), nan.size() * 2);
    else
      std::memcpy(slot, nan.data(), nan.size() * 2);
  }
};

}  // namespace

std::vector<AppendStep> append_steps() {
  const auto config = [](const char* variant, AppendKv mode) {
    return AttentionConfig{.variant = variant, .num_qo_heads = 4 * kHeads, .num_kv_heads = kHeads, .head_dim = kDim,
                           .page_size = kPage, .append_kv = mode};
  };
  const std::vector<std::pair<int, int>> mixed = {{1, 900}, {40, 40}, {1, 1}, {9, 300}, {4, 77}},
                                         prompts = {{40, 40}, {1, 1}, {130, 130}, {3, 3}};
  std::vector<AppendStep> steps = {{config("causal", AppendKv::copy), mixed}, {config("rope", AppendKv::copy), mixed}};
  for (const char* variant : {"rope", "rope_interleaved", "llama31_rope", "qk_norm"})
    steps.push_back({config(variant, AppendKv::transform), prompts});
  return steps;
}

tools::StepCheck append_and_attend(Engine& engine, const AppendStep& step) {
  const AttentionConfig& config = step.config;
  Attention attention = engine.attention(config);
  tools::KvCache cache(engine, {.num_kv_heads = kHeads, .head_dim = kDim, .page_size = kPage}, 1, 200, 11);
  std::vector<tools::StepRequest> requests;
  std::vector<std::int32_t> qo_lens, kv_lens;
  for (const auto& [qo_len, kv_len] : step.lengths) {
    cache.append(int(requests.size()), kv_len);
    requests.push_back({int(requests.size()), qo_len});
    qo_lens.push_back(qo_len), kv_lens.push_back(kv_len);
  }
  cache.upload();
  const tools::StepBatch batch(cache, requests);
  const FreshRows rows(engine, cache, batch);
  tools::QuerySide query(engine, rows.count + 2, config.num_qo_heads, kDim, DType::bf16, 5);
  query.refill(rows.count);
  const tools::VariantTensors own(engine, attention.variant(), tools::shape_words(config, qo_lens, kv_lens), {}, 6);
  DeviceMemory indices(engine, batch.kv_indices.size() * 4);
  indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
  const auto* pages = static_cast<const std::int32_t*>(indices.data());

  AppendTensors append{.new_k = tools::tensor_of(rows.k.data(), DType::bf16, {rows.count, kHeads, kDim}),
                       .new_v = tools::tensor_of(rows.v.data(), DType::bf16, {rows.count, kHeads, kDim}),
                       .k = cache.k(0), .v = cache.v(0), .kv_indices = pages};
  if (config.append_kv == AppendKv::transform) append.variant = own.on_device();
  const Tensors tensors{.q = query.q(), .k = cache.k(0), .v = cache.v(0), .o = query.o(), .lse = query.lse(),
                        .kv_indices = pages, .variant = own.on_device()};
  Workspace workspace = attention.workspace({.max_requests = 8, .max_qo_rows = 256, .max_kv_tokens = 4096});
  const auto call = [&](Stream stream) {
    attention.append_kv(workspace, append, {}, stream);
    attention.run(workspace, tensors, {}, stream);
  };
  if (engine.device().kind == DeviceKind::cuda) {
    const StreamHandle stream = StreamHandle::create();
    synchronize(nullptr);
    attention.plan(batch.batch(), workspace, stream.get());
    Graph::begin_capture(stream.get());
    call(stream.get());
    const Graph graph = Graph::end_capture(stream.get());
    graph.launch(stream.get());
    stream.synchronize();
  } else {
    attention.plan(batch.batch(), workspace);
    call(nullptr);
  }
  return tools::check_step(engine, attention, {}, cache, 0, batch, query, own.on_host());
}

}  // namespace heddle_tests
