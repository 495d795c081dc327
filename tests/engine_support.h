// What the engine's tests share: the CPU device, a cache folder of their own, specs from text, and
// one step with everything that a user's variant may ask for.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/runtime_support.h"
#include "tools/check.h"
#include "tools/variant_tensors.h"

namespace heddle_tests {

// The reference keeps a cache of its own where the environment says; no test may touch the user's.
inline const std::string& test_cache_dir() {
  static const heddle::TempDir dir;
  static const int done = setenv("HEDDLE_CACHE_DIR", dir.path().c_str(), 1);
  return (void)done, dir.path();
}

inline heddle::Engine cpu_engine() {
  return heddle::Engine({.device = heddle::DeviceKind::cpu, .cache_dir = test_cache_dir()});
}

inline void add_spec(heddle::Engine& engine, const std::string& json) {
  engine.register_variant(heddle::Variant::from_json(json, "test.json", engine.variants()));
}

// What a call says when it refuses.
template <class Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const heddle::Error& error) {
    return error.what();
  }
  return "accepted";
}

struct StepLengths {
  std::vector<int> qo, kv;
};

// One layer of random K/V, the query side and the variant's own tensors; runs once and is checked.
class VariantStep {
 public:
  VariantStep(const heddle::Engine& engine, const heddle::Attention& attention,
              const StepLengths& lengths, heddle::KvLayout layout = heddle::KvLayout::NHD,
              const heddle::ParamValues& params = {})
      : engine_(engine),
        config_(attention.config()),
        lengths_(lengths),
        cache_(engine,
               {.num_kv_heads = config_.num_kv_heads,
                .head_dim = config_.head_dim,
                .head_dim_vo = config_.vo_dim(),
                .page_size = config_.page_size,
                .dtype = config_.kv_dtype,
                .layout = layout},
               1, num_pages(), 1),
        query_(engine, rows() + 2, config_.num_qo_heads, config_.head_dim, config_.q_dtype, 2,
                 config_.vo_dim()),
        own_(engine, attention.variant(),
             heddle::tools::shape_words(config_, lengths.qo, lengths.kv), params, 3) {}

  heddle::tools::StepCheck run(heddle::Attention& attention,
                               const heddle::ParamValues& params = {}) {
    heddle::tools::StepBatch batch = fill();
    batch.ranges = heddle::tools::random_key_ranges(attention.variant(), 4, lengths_.qo, lengths_.kv);
    heddle::Workspace workspace = attention.workspace(
        {.max_requests = int(lengths_.kv.size()), .max_qo_rows = rows(), .max_kv_tokens = 1 << 20});
    summary_ = attention.plan(batch.batch(), workspace, nullptr, params);
    heddle::Tensors tensors{.q = query_.q(),
                            .k = cache_.k(0),
                            .v = cache_.v(0),
                            .o = query_.o(),
                            .layout = cache_.shape().layout,
                            .variant = own_.on_device()};
    if (attention.variant().use_softmax) tensors.lse = query_.lse();
    if (config_.page_size) tensors.kv_indices = batch.kv_indices.data();
    attention.run(workspace, tensors, params);
    return check_step(engine_, attention, params, cache_, 0, batch, query_, own_.on_host());
  }

  const heddle::PlanSummary& summary() const { return summary_; }
  const heddle::tools::QuerySide& query() const { return query_; }

 private:
  int rows() const {
    int sum = 0;
    for (const int qo : lengths_.qo) sum += qo;
    return sum;
  }

  int num_pages() const {
    const int keys = std::max(1, config_.page_size);
    int pages = 3;
    for (const int kv : lengths_.kv) pages += (kv + keys - 1) / keys;
    return pages;
  }

  heddle::tools::StepBatch fill() {
    std::vector<heddle::tools::StepRequest> step;
    for (int r = 0; r < int(lengths_.kv.size()); ++r) {
      cache_.append(r, lengths_.kv[r]);
      step.push_back({r, lengths_.qo[r]});
    }
    cache_.upload();
    query_.refill(rows());
    return {cache_, step};
  }

  const heddle::Engine& engine_;
  const heddle::AttentionConfig config_;
  const StepLengths lengths_;
  heddle::tools::KvCache cache_;
  heddle::tools::QuerySide query_;
  heddle::tools::VariantTensors own_;
  heddle::PlanSummary summary_;
};

}  // namespace heddle_tests
