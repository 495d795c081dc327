#include "tests/invariance.h"

#include <bit>

#include <fmt/format.h>

#include "planner/plan_view.h"
#include "runtime/driver.h"
#include "tools/check.h"

namespace heddle_tests {

using namespace heddle;

namespace {

using Bits = std::vector<std::uint64_t>;

// Tensors at fixed addresses; request 0 of the cache is the probe.
class Trial {
 public:
  Trial(Engine& engine, const Probe& probe, const Company& company, std::uint64_t seed,
        bool batch_invariant)
      : engine_(engine),
        probe_(probe),
        company_(company),
        random_(seed),
        attention_(engine.attention(with(probe.config, batch_invariant))),
        max_rows_(probe.qo_len + company.requests * company.qo_len),
        max_pages_(pages_of(probe.kv_len) + company.requests * pages_of(company.kv_len)),
        cache_(engine, shape_of(probe.config), 1, max_pages_, seed + 1),
        query_(engine, max_rows_ + 1, probe.config.num_qo_heads, probe.config.head_dim,
               probe.config.q_dtype, seed + 2),
        indices_(engine, std::size_t(max_pages_) * 4 + 4) {
    cache_.append(0, probe.kv_len);
    probe_q_.resize(std::size_t(probe.qo_len) * probe.config.num_qo_heads * probe.config.head_dim);
    tools::NormalSource(probe.config.q_dtype, seed + 3).fill(probe_q_.data(), probe_q_.size());
    workspace_ = attention_.workspace({.max_requests = company.requests + 1,
                                       .max_qo_rows = max_rows_,
                                       .max_kv_tokens = std::int64_t(max_pages_) * probe.config.page_size});
  }

  // A new batch; the probe stands at place_ in it.
  tools::StepBatch draw_batch() {
    for (int r = 1; r <= others_; ++r) cache_.release(r);
    others_ = random_.below(company_.requests + 1);
    place_ = random_.below(others_ + 1);
    std::vector<tools::StepRequest> step;
    for (int r = 1; r <= others_; ++r) {
      if (r == place_ + 1) step.push_back({0, probe_.qo_len});
      // Most are single rows over few keys, some are long, some are empty.
      const int qo_len = random_.below(3) ? 1 : random_.below(company_.qo_len + 1);
      cache_.append(r, random_.below(company_.kv_len / (random_.below(6) ? 8 : 1) + 1));
      step.push_back({r, qo_len});
    }
    if (place_ == others_) step.push_back({0, probe_.qo_len});
    cache_.upload();
    tools::StepBatch batch(cache_, step);
    if (attention_.variant().mask.rows_given) give_ranges(batch);
    return batch;
  }

  // The probe's rows see all but a few keys at both ends, the same ones every time.
  void give_ranges(tools::StepBatch& batch) {
    for (const tools::StepRequest& r : batch.requests) {
      const std::vector<std::int32_t> qo_len{r.qo_len}, kv_len{cache_.kv_len(r.request)};
      if (r.request != 0) batch.ranges.append(tools::random_key_ranges(attention_.variant(), random_.bits(), qo_len, kv_len));
      for (int row = 0; r.request == 0 && row < r.qo_len; ++row) batch.ranges.add(100 + 3 * row, kv_len[0] - 70 + row);
    }
  }

  void prepare(const tools::StepBatch& batch) {
    if (!batch.kv_indices.empty()) indices_.write(0, std::as_bytes(std::span(batch.kv_indices)));
    query_.refill(batch.num_qo_rows());
    query_.set_rows(batch.qo_indptr[place_], probe_q_);
  }

  // What the probe's rows come to.
  Bits run(const tools::StepBatch& batch) {
    const bool has_lse = attention_.variant().use_softmax;
    attention_.plan(batch.batch(), workspace_, nullptr, probe_.params);
    Tensors tensors{.q = query_.q(), .k = cache_.k(0), .v = cache_.v(0), .o = query_.o(),
                    .kv_indices = static_cast<const std::int32_t*>(indices_.data())};
    if (has_lse) tensors.lse = query_.lse();
    attention_.run(workspace_, tensors, probe_.params);
    if (engine_.device().kind == DeviceKind::cuda) synchronize(nullptr);
    Bits bits;
    const auto add = [&](const std::vector<double>& values, int per_row) {
      const auto begin = values.begin() + batch.qo_indptr[place_] * per_row;
      for (auto x = begin; x != begin + probe_.qo_len * per_row; ++x)
        bits.push_back(std::bit_cast<std::uint64_t>(*x));
    };
    const int heads = probe_.config.num_qo_heads;
    add(query_.read_o(batch.num_qo_rows()), heads * probe_.config.head_dim);
    if (has_lse) add(query_.read_lse(batch.num_qo_rows()), heads);
    return bits;
  }

  tools::StepCheck check(const tools::StepBatch& batch) const {
    return tools::check_step(engine_, attention_, probe_.params, cache_, 0, batch, query_);
  }

  bool probe_is_cut() const {
    const PlanView view(workspace_.plan_bytes());
    for (const Pipeline p : {Pipeline::decode, Pipeline::append})
      for (const WorkItem& item : view.section(p).items)
        if (item.request == place_) return item.partial >= 0;
    return false;
  }

 private:
  static AttentionConfig with(AttentionConfig config, bool batch_invariant) {
    config.batch_invariant = batch_invariant;
    return config;
  }
  static tools::KvShape shape_of(const AttentionConfig& c) {
    return {.num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .page_size = c.page_size, .dtype = c.kv_dtype};
  }
  int pages_of(int kv_len) const { return (kv_len + probe_.config.page_size - 1) / probe_.config.page_size; }

  Engine& engine_;
  const Probe& probe_;
  const Company company_;
  tools::Random random_;
  Attention attention_;
  const int max_rows_, max_pages_;
  tools::KvCache cache_;
  tools::QuerySide query_;
  tools::DeviceMemory indices_;
  Workspace workspace_;
  std::vector<std::uint16_t> probe_q_;
  int others_ = 0, place_ = 0;
};

}  // namespace

void try_probe(Engine& engine, const Probe& probe, const Company& company, int batches, std::uint64_t seed,
               InvarianceTally& tally, bool batch_invariant) {
  Trial trial(engine, probe, company, seed, batch_invariant);
  const std::string name = fmt::format("{} heads {},{},{} qo {} kv {}", probe.config.variant, probe.config.num_qo_heads,
                                       probe.config.num_kv_heads, probe.config.head_dim, probe.qo_len, probe.kv_len);
  Bits wanted;
  std::vector<std::string> wrong;
  int same = 0;
  for (int i = 0; i < batches; ++i) {
    const tools::StepBatch batch = trial.draw_batch();
    trial.prepare(batch);
    const Bits first = trial.run(batch);
    if (i == 0) {
      wanted = first;
      if (const auto check = trial.check(batch); !check.ok()) wrong.push_back(name + ": " + check.problem());
    }
    const Bits again = trial.run(batch);  // the slots are empty again
    same += first == wanted && again == wanted;
    if (batch_invariant && trial.probe_is_cut() != probe.is_cut) wrong.push_back(name + (probe.is_cut ? " is not cut" : " is cut"));
    if (first != wanted) wrong.push_back(fmt::format("{}: other bits in batch {}", name, i));
    if (again != first) wrong.push_back(fmt::format("{}: other bits the second time in batch {}", name, i));
  }
  const std::lock_guard lock(tally.mutex);
  tally.batches += batches;
  tally.same += same;
  tally.wrong.insert(tally.wrong.end(), wrong.begin(), wrong.end());
}

std::vector<Probe> probes(int scale) {
  const auto config = [](const char* variant, int qo_heads, int kv_heads, int head_dim, DType dtype = DType::bf16) {
    return AttentionConfig{.variant = variant, .num_qo_heads = qo_heads, .num_kv_heads = kv_heads, .head_dim = head_dim,
                           .q_dtype = dtype, .kv_dtype = dtype};
  };
  return {
      {config("softmax", 4, 1, 128), 1, 3000 * scale},
      {config("causal", 4, 2, 128), 4, 2500 * scale},
      {config("softmax", 2, 1, 256, DType::f16), 1, 2000 * scale},
      {config("soft_cap", 3, 1, 64), 1, 6000 * scale, {{"cap", 20}}},
      {config("sliding_window", 4, 1, 128), 2, 5000 * scale, {{"window", 2000}}},
      {config("sliding_window", 4, 1, 128), 1, 5000 * scale, {{"window", 300}}, false},
      {config("sigmoid", 4, 2, 128), 1, 2000 * scale, {{"bias", -4}}},
      {config("softmax", 8, 2, 128), 1, 777, {}, false},
      {config("causal", 8, 2, 128), 3, 0, {}, false},
      {config("causal", 2, 1, 64), 9, 9000 * scale},
      {config("gemma2", 2, 1, 64), 20, 9000 * scale, {{"window", 5000}, {"cap", 50}}},
      {config("causal", 4, 2, 64), 70, 300, {}, false},
      {config("causal", 2, 1, 64), 33, 9000 * scale},  // on the CPU device two query tiles
      {config("causal", 4, 2, 64), 9, 0, {}, false},
      {config("key_ranges", 4, 1, 128), 3, 3500 * scale},
      {config("key_ranges", 2, 1, 64), 33, 9000 * scale},
  };
}

}  // namespace heddle_tests
