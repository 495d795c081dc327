// Cases of strides and 64-bit offsets: the same elements laid out otherwise give the same bits.
#include "tests/attention_cases.h"

namespace heddle_tests {

using namespace heddle;

namespace {

constexpr std::int64_t kBillion = std::int64_t{1} << 30;

ProblemShape over(const AttentionConfig& config, std::vector<int> qo, std::vector<int> kv) {
  return {.config = config, .qo_lens = std::move(qo), .kv_lens = std::move(kv)};
}

// K and V moved into a pool whose pages are `page_stride` elements apart, `shift` pages further on.
Found in_a_large_pool(Engine& engine, const AttentionConfig& config, std::int64_t page_stride,
                      std::int32_t shift) {
  CaseRun run(engine, over(config, {1, 40}, {700, 65}));
  const Tensors given = run.problem.tensors();
  std::vector<std::int32_t> ids(std::size_t(run.problem.batch().kv_indptr.back()));
  const std::vector<std::byte> bytes =
      elements_of(engine, tools::tensor_of(const_cast<std::int32_t*>(given.kv_indices), DType::i32,
                                           {std::int64_t(ids.size())}));
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(ids)).begin());
  for (std::int32_t& id : ids) id += shift;
  tools::DeviceMemory moved(engine, ids.size() * 4);
  moved.write(0, std::as_bytes(std::span(ids)));
  std::vector<std::int64_t> strides = Relaid::tight(given.k);
  strides[0] = page_stride;
  const Relaid k(engine, given.k, strides, shift * page_stride),
      v(engine, given.v, strides, shift * page_stride);
  return same_bits(run, [&](Tensors& t) {
    t.k = k.tensor(), t.v = v.tensor();
    for (Tensor* pool : {&t.k, &t.v}) {  // page 0 is where the pool begins
      pool->data = static_cast<std::uint16_t*>(pool->data) - shift * page_stride;
      pool->shape[0] += shift;
    }
    t.kv_indices = static_cast<const std::int32_t*>(moved.data());
  });
}

}  // namespace

Found b28(Engine& engine) {
  // 65,536 pages of 16 keys, 16 heads and 128 columns are 2^31 elements.
  return in_a_large_pool(engine, shape_of("causal", 16, 16, 128, 16), 16 * 16 * 128, 65536 - 20);
}

Found b29(Engine& engine) {
  return in_a_large_pool(engine, shape_of("causal", 4, 1, 256, 480), 276480, 7767);
}

Found b31(Engine& engine) {
  CaseRun run(engine, over(shape_of("custom_mask", 4, 2, 64, 16), {1, 4}, {700, 65}));
  const Relaid bits(engine, run.problem.tensors().variant.at("bits"), {kBillion - 5, 1});
  return same_bits(run, [&](Tensors& t) { t.variant["bits"] = bits.tensor(); });
}

Found b34(Engine& engine) {
  CaseRun run(engine, over(shape_of("causal", 4, 2, 64, 16), {1, 4, 2}, {700, 65, 3}));
  std::vector<Relaid> kept;
  return same_bits(run, [&](Tensors& t) {
    for (Tensor* tensor : {&t.q, &t.o}) {
      kept.emplace_back(engine, *tensor, std::vector<std::int64_t>{kBillion / 2, 64, 1});
      *tensor = kept.back().tensor();
    }
  });
}

namespace {

// q, k and v side by side in each row of one buffer.
Found fused(Engine& engine, std::int64_t row_stride) {
  CaseRun run(engine, over(shape_of("causal", 4, 4, 64, 0), {40, 30}, {40, 30}));
  std::vector<Relaid> kept;
  return same_bits(run, [&](Tensors& t) {
    for (Tensor* tensor : {&t.q, &t.k, &t.v}) {
      kept.emplace_back(engine, *tensor, std::vector<std::int64_t>{row_stride, 64, 1},
                        std::int64_t(kept.size()) * 4 * 64);
      *tensor = kept.back().tensor();
    }
  });
}

}  // namespace

Found b35(Engine& engine) {
  if (const Found found = fused(engine, 3 * 4 * 64); !found.empty()) return found;
  return fused(engine, kBillion / 16);
}

Found b38(Engine& engine) {
  CaseRun run(engine, over(shape_of("causal", 4, 2, 64, 0), {1, 20}, {40, 30}));
  std::vector<Relaid> kept;
  return same_bits(run, [&](Tensors& t) {
    for (Tensor* tensor : {&t.k, &t.v}) {
      kept.emplace_back(engine, *tensor, std::vector<std::int64_t>{kBillion / 16, 64, 1});
      *tensor = kept.back().tensor();
    }
  });
}

Found b40(Engine& engine) {
  CaseRun run(engine, over(shape_of("causal", 1, 1, 64, 1), {1, 40}, {300, 70}));
  std::vector<Relaid> kept;
  return same_bits(run, [&](Tensors& t) {
    kept.emplace_back(engine, t.q, std::vector<std::int64_t>{3 * 64, 64, 1}, 64);
    t.q = kept.back().tensor();
    kept.emplace_back(engine, t.o, Relaid::tight(t.o));
    t.o = kept.back().tensor();
  });
}

Found b43(Engine& engine) {
  // Heads outermost, as a transposed view has them; then once more, when everything is cached.
  for (int time = 0; time < 2; ++time) {
    CaseRun run(engine, over(shape_of("causal", 24, 4, 256, 0), {40}, {40}));
    std::vector<Relaid> kept;
    const Found found = same_bits(run, [&](Tensors& t) {
      for (Tensor* tensor : {&t.q, &t.k}) {
        kept.emplace_back(engine, *tensor,
                          std::vector<std::int64_t>{256, tensor->shape[0] * 256, 1});
        *tensor = kept.back().tensor();
      }
    });
    if (!found.empty()) return found;
  }
  return {};
}

Found b44(Engine& engine) {
  for (const auto& [qo, kv] : {std::pair{std::vector{40, 1}, std::vector{70, 30}}, {{1}, {900}}}) {
    CaseRun run(engine, over(shape_of("softmax", 4, 2, 64, 0), qo, kv));
    std::vector<Relaid> kept;
    const Found found = same_bits(run, [&](Tensors& t) {
      kept.emplace_back(engine, t.k, std::vector<std::int64_t>{2 * 2 * 64, 64, 1});
      t.k = kept.back().tensor();
      kept.emplace_back(engine, t.v, Relaid::tight(t.v));
      t.v = kept.back().tensor();
    });
    if (!found.empty()) return found;
  }
  return {};
}

Found b46(Engine& engine) {
  CaseRun run(engine, over(shape_of("causal", 8, 2, 64, 16), {1, 3, 40}, {900, 700, 65}));
  std::vector<Relaid> kept;
  const Found found = same_bits(run, [&](Tensors& t) {
    kept.emplace_back(engine, t.o, std::vector<std::int64_t>{64, t.o.shape[0] * 64, 1});
    t.o = kept.back().tensor();
    kept.emplace_back(engine, t.lse, std::vector<std::int64_t>{1, t.lse.shape[0]});
    t.lse = kept.back().tensor();
  });
  return !found.empty() || run.is_cut() ? found : "nothing was cut, so nothing was tried";
}

Found b47(Engine& engine) {
  for (const int kv : {33, 34, 97, 129}) {
    CaseRun run(engine, over(shape_of("softmax", 4, 4, 256, 0), {20, 1}, {kv, 64}));
    if (const Found found = run.judge(); !found.empty()) return found;
    Tensors shared = run.problem.tensors();
    shared.k.strides[1] = shared.v.strides[1] = 0;  // every head reads head 0
    const Relaid k(engine, shared.k, Relaid::tight(shared.k)),
        v(engine, shared.v, Relaid::tight(shared.v));
    run.run(shared);
    const std::vector<double> expanded = run.o();
    shared.k = k.tensor(), shared.v = v.tensor();
    run.run(shared);
    if (run.o() != expanded) return "expanded heads differ from copied ones";
  }
  return {};
}

}  // namespace heddle_tests
