// Cases of batches, groups, head dims and page sizes, and of batch_invariant.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tests/attention_cases.h"
#include "tests/invariance.h"

namespace heddle_tests {

using namespace heddle;

namespace {

ProblemShape over(const AttentionConfig& config, std::vector<int> qo, std::vector<int> kv) {
  return {.config = config, .qo_lens = std::move(qo), .kv_lens = std::move(kv)};
}

// A probe's bits in random batches, as tests/invariance.h has it.
Found same_in_every_batch(Engine& engine, const Probe& probe, const Company& company) {
  InvarianceTally tally;
  try_probe(engine, probe, company, 6, 1, tally);
  if (!tally.wrong.empty()) return tally.wrong.front();
  if (tally.batches == 0) return "no batch was tried";
  return tally.same == tally.batches
             ? ""
             : fmt::format("{} of {} batches have the first one's bits", tally.same, tally.batches);
}

}  // namespace

Found b37(Engine& engine) {
  ProblemShape shape = over(shape_of("softmax", 1, 1, 16, 16), std::vector<int>(80000, 1),
                            std::vector<int>(80000, 3));
  shape.constant = std::array{0.f, 1.f, 1.f};
  shape.kv_lens[65535] = shape.kv_lens[65536] = 17;
  CaseRun run(engine, shape);
  run.plan();
  run.run(run.problem.tensors());
  const std::vector<double> o = run.o(), lse = run.lse();
  for (std::size_t r = 0; r < lse.size(); ++r)
    if (o[r * 16] != 1 || o[r * 16 + 15] != 1 ||
        std::abs(lse[r] - std::log(shape.kv_lens[r])) > 1e-4)
      return fmt::format("request {} has o {} and lse {}", r, o[r * 16], lse[r]);
  return {};
}

Found b50(Engine& engine) {
  return judge_all(engine, {over(shape_of("causal", 8, 2, 64, 0), {20, 20, 20}, {33, 33, 33}),
                            over(shape_of("causal", 8, 8, 64, 0), {20, 20}, {20, 20}),
                            over(shape_of("causal", 8, 2, 64, 16), {2, 2, 2}, {40, 41, 42})});
}

Found b53(Engine& engine) {
  for (const int qo : {2, 3})
    if (const Found found =
            CaseRun(engine, over(shape_of("causal", 64, 8, 64, 16), std::vector<int>(8, qo),
                                 {100, 3, 65, 2, 129, 64, 70, 30}))
                .judge();
        !found.empty())
      return found;
  return {};
}

namespace {

// A graph's padding: requests behind the real ones, without keys.
Found padded(Engine& engine, bool as_table) {
  CaseRun run(engine,
              over(shape_of("causal", 8, 2, 64, 16), {1, 1, 1, 1, 1, 1}, {700, 40, 0, 0, 0, 0}));
  if (const Found found = run.judge(); !found.empty() || !as_table) return found;
  constexpr int kStride = 50;
  const Batch csr = run.problem.batch();
  std::vector<std::int32_t> ids(std::size_t(csr.kv_indptr.back())), table(6 * kStride, -1);
  Tensors tensors = run.problem.tensors();
  const std::vector<std::byte> bytes =
      elements_of(engine, tools::tensor_of(const_cast<std::int32_t*>(tensors.kv_indices),
                                           DType::i32, {std::int64_t(ids.size())}));
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(ids)).begin());
  for (int r = 0; r < 6; ++r)
    std::copy(ids.begin() + csr.kv_indptr[r], ids.begin() + csr.kv_indptr[r + 1],
              table.begin() + r * kStride);
  tools::DeviceMemory memory(engine, table.size() * 4);
  memory.write(0, std::as_bytes(std::span(table)));
  tensors.kv_indices = static_cast<const std::int32_t*>(memory.data());
  run.problem.poison_output();
  run.attention.plan({.qo_indptr = csr.qo_indptr,
                      .kv_table_stride = kStride,
                      .kv_lens = run.problem.shape().kv_lens},
                     run.workspace);
  run.run(tensors);
  return run.problem.judge().what;
}

}  // namespace

Found b58(Engine& engine) { return padded(engine, true); }
Found b59(Engine& engine) { return padded(engine, false); }

Found b61(Engine& engine) {
  CaseRun a(engine, over(shape_of("causal", 8, 2, 64, 16), {1, 40}, {900, 65}));
  Problem other(engine, over(a.problem.shape().config, {3, 1}, {130, 700}), 2);
  Workspace second = a.attention.workspace(other.maxima());
  a.problem.poison_output(), other.poison_output();
  a.plan();
  a.attention.plan(other.batch(), second);
  a.run(a.problem.tensors());
  a.attention.run(second, other.tensors());
  a.run(a.problem.tensors());
  if (const Verdict verdict = a.problem.judge(); !verdict.ok) return verdict.what;
  return other.judge().what;
}

Found b70(Engine& engine) {
  return same_in_every_batch(engine, {shape_of("softmax", 14, 2, 64, 16), 1, 19802},
                             {.requests = 3, .qo_len = 12, .kv_len = 40});
}
Found b71(Engine& engine) {
  return same_in_every_batch(engine, {shape_of("causal", 8, 8, 128, 16), 1, 5000},
                             {.requests = 8, .qo_len = 40, .kv_len = 3000});
}
Found b73(Engine& engine) {
  return same_in_every_batch(engine,
                             {.config = shape_of("sliding_window", 4, 1, 128, 16),
                              .qo_len = 1,
                              .kv_len = 9000,
                              .params = {{"window", 6000}}},
                             {.requests = 8, .qo_len = 20, .kv_len = 900});
}

Found b74(Engine& engine) {
  // One prompt in chunks of 37, 64 and 49 rows, each over all keys so far, and in one go.
  const AttentionConfig config = shape_of("causal", 4, 2, 64, 16);
  return judge_all(engine, {over(config, {37}, {37}), over(config, {64}, {101}),
                            over(config, {49}, {150}), over(config, {150}, {150})});
}

Found b97(Engine& engine) {
  const AttentionConfig config = shape_of("causal", 28, 4, 128, 1);
  if (const Found found = judge_all(engine, {over(config, {1, 2, 40}, {700, 300, 65})});
      !found.empty())
    return found;
  CaseRun run(engine, over(config, {2}, {900}));
  if (const Found found = run.judge(); !found.empty()) return found;
  return run.is_cut() ? "" : "nothing was cut, so nothing was tried";
}

Found b98(Engine& engine) {
  std::vector<ProblemShape> shapes;
  for (const auto& [qo_heads, kv_heads] : {std::pair{40, 8}, {24, 4}, {28, 4}, {64, 4}, {64, 1}})
    shapes.push_back(
        over(shape_of("causal", qo_heads, kv_heads, 64, 16), {1, 1, 5}, {300, 17, 30}));
  return judge_all(engine, shapes);
}

Found b100(Engine& engine) {
  return judge_all(engine, {over(shape_of("causal", 8, 2, 64, 16), {90}, {90}),
                            over(shape_of("causal", 16, 2, 64, 0), {70}, {130})});
}

Found b103(Engine& engine) {
  std::vector<ProblemShape> shapes;
  for (const int head_dim : {16, 80, 96, 112, 192, 224})
    shapes.push_back(over(shape_of("causal", 8, 8, head_dim, 16), {30, 1, 1}, {66, 130, 300}));
  return judge_all(engine, shapes);
}

Found b109(Engine& engine) {
  return judge_all(engine,
                   {over(shape_of("causal", 8, 1, 256, 16), {5, 5, 5, 5}, {300, 301, 40, 700}),
                    over(shape_of("causal", 8, 1, 256, 16), {8, 6, 4}, {129, 300, 65})});
}

Found b110(Engine& engine) {
  return judge_all(engine, {over(shape_of("causal", 4, 2, 256, 16), {1, 30}, {300, 130}),
                            over(shape_of("causal", 4, 2, 256, 32), {1, 30}, {300, 130}),
                            over(shape_of("causal", 4, 2, 256, 64), {1, 30}, {300, 130})});
}

Found b112(Engine& engine) {
  std::vector<ProblemShape> shapes;
  for (const int page_size : {1, 16, 32, 48, 64})
    for (const KvLayout layout : {KvLayout::NHD, KvLayout::HND}) {
      shapes.push_back(over(shape_of("causal", 4, 2, 64, page_size), {1, 40, 3}, {300, 101, 64}));
      shapes.back().layout = layout;
    }
  return judge_all(engine, shapes);
}

Found b115(Engine& engine) {
  return judge_all(engine, {over(shape_of("softmax", 4, 2, 64, 128), {1, 1, 20}, {64, 1, 127}),
                            over(shape_of("softmax", 4, 2, 64, 512), {1, 20}, {64, 600})});
}
Found b118(Engine& engine) {
  return judge_all(engine, {over(shape_of("causal", 4, 2, 64, 64), {1, 1, 3}, {3, 1, 40}),
                            over(shape_of("causal", 4, 2, 64, 256), {3}, {3})});
}

}  // namespace heddle_tests
