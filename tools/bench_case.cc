#include "tools/bench_case.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/host_timer.h"

namespace heddle::tools {
namespace {

constexpr int kLeastLaunches = 8;  // of a timed graph
constexpr std::uint64_t kSeed = 3;  // of a variant's tensors

}  // namespace

AttentionConfig config_of(const Workload& w, const std::string& variant) {
  return {.variant = variant,
          .num_qo_heads = w.heads.num_qo_heads,
          .num_kv_heads = w.heads.num_kv_heads,
          .head_dim = w.heads.head_dim,
          .head_dim_vo = w.heads.head_dim_vo,
          .q_dtype = w.dtype,
          .kv_dtype = w.dtype,
          .page_size = w.page_size,
          .max_qo_len = *std::max_element(w.qo_lens.begin(), w.qo_lens.end()),
          .max_requests = int(w.qo_lens.size()),
          .batch_invariant = w.batch_invariant,
          .share_prefixes = w.share_prefixes,
          .portable = w.portable};
}

BenchCase::BenchCase(Engine& engine, RandomBlocks& blocks, const Workload& w)
    : on_gpu_(engine.device().kind == DeviceKind::cuda),
      data_(blocks, w),
      rule_(variant_of(engine, w)),
      own_(engine, rule_.variant, shape_words(config_of(w, rule_.variant.name), w.qo_lens, w.kv_lens), rule_.params,
           kSeed) {
  rule_.tensors = own_.on_host();
  engine.register_variant(rule_.variant);
  first_s_ = seconds_of([&] { make_attention(engine); });
}

void BenchCase::make_attention(Engine& engine) {
  const Workload& w = data_.workload();
  const AttentionConfig config = config_of(w, rule_.variant.name);
  attention_ = engine.attention(config);
  workspace_ = attention_.workspace({.max_requests = int(w.qo_lens.size()),
                                     .max_qo_rows = w.num_qo_rows(),
                                     .max_kv_tokens = w.num_kv_tokens(),
                                     .max_qo_len = config.max_qo_len});
  plan();
  run(0, nullptr);
  wait();
}

void BenchCase::wait() const {
  if (on_gpu_) synchronize(nullptr);
}

BenchRow BenchCase::measure() {
  const Workload& w = data_.workload();
  BenchRow row{.workload = w.name, .batch_invariant = w.batch_invariant, .first_s = first_s_};
  const OutputError found = output_error(data_, rule_, int(w.qo_lens.size()));
  row.err = found.error;
  if (!found.ok()) {
    row.not_run = wrong_result(found);
    return row;
  }
  row.plan_us = median_us(
      30, [&] { wait(); }, [&] { plan(); });
  wait();
  row.us = run_us();
  row.bytes = w.bytes() + own_.bytes();
  row.tbps = row.bytes / row.us / 1e6;
  row.tflops = w.flops() / row.us / 1e6;
  return row;
}

double BenchCase::run_us() {
  const int layers = data_.workload().layers();
  if (!on_gpu_) {
    int i = 0;
    return median_us(
        3, [] {}, [&] { run(i++ % layers, nullptr); });
  }
  std::vector<std::function<void(Stream)>> calls;
  // As in a model, whose graph holds all layers: starting the graph is not what one of them costs.
  const int launches = (kLeastLaunches + layers - 1) / layers * layers;
  for (int i = 0; i < launches; ++i)
    calls.push_back([this, layer = i % layers](Stream stream) { run(layer, stream); });
  return graph_us(calls);
}

BenchRow measure(Engine& engine, RandomBlocks& blocks, const Workload& w) {
  const auto not_run = [&](const char* why) {
    return BenchRow{.workload = w.name, .batch_invariant = w.batch_invariant, .not_run = why};
  };
  if (w.kind == "mla") return not_run("MLA has no pipeline yet");
  if (w.qo_lens.empty()) return not_run("it has no request");
  try {
    return BenchCase(engine, blocks, w).measure();
  } catch (const Error& error) {
    return not_run(error.what());
  }
}

}  // namespace heddle::tools
