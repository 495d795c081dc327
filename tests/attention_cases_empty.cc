// Cases of numbers that are none or nearly none: empty and masked rows, NaN beside keys, lse,
// merges.
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/attention_cases.h"

namespace heddle_tests {

using namespace heddle;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows over equal keys: o is `value` and lse `logit` + log(keys seen), or 0 and -inf where none is.
Found rows_see(const CaseRun& run, double value, double logit,
               const std::function<int(int)>& keys_seen) {
  const AttentionConfig& c = run.problem.shape().config;
  const std::vector<double> o = run.o(), lse = run.lse();
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const int row = int(i) / c.num_qo_heads, seen = keys_seen(row);
    const double wanted = seen ? logit + std::log(seen) : -kInfinity;
    if (!(lse[i] == wanted || std::abs(lse[i] - wanted) <= 1e-4 * std::max(1.0, std::abs(wanted))))
      return fmt::format("row {}: lse is {}, not {}", row, lse[i], wanted);
    for (int d = 0; d < c.head_dim; ++d)
      if (const double x = o[i * std::size_t(c.head_dim) + std::size_t(d)]; x != (seen ? value : 0))
        return fmt::format("row {}: o is {}, not {}", row, x, seen ? value : 0);
  }
  return {};
}

Found plain_rows(Engine& engine, const ProblemShape& shape, double logit) {
  CaseRun run(engine, shape);
  if (const Found found = run.judge(); !found.empty()) return found;
  std::vector<int> seen;
  for (std::size_t r = 0; r < shape.kv_lens.size(); ++r)
    seen.insert(seen.end(), std::size_t(shape.qo_lens[r]), shape.kv_lens[r]);
  return rows_see(run, (*shape.constant)[2], logit,
                  [&](int row) { return seen[std::size_t(row)]; });
}

// custom_mask over equal keys; `sees` says what row r sees of 900 keys.
Found masked_rows(Engine& engine, const std::function<bool(int row, int key)>& sees) {
  constexpr int kKeys = 900, kBytes = (kKeys + 7) / 8;
  const ProblemShape shape{.config = shape_of("custom_mask", 4, 2, 64, 16),
                           .qo_lens = {1, 1, 1, 1, 70, 6},
                           .kv_lens = std::vector<int>(6, kKeys),
                           .constant = std::array{1.0f, 1.0f, 1.5f}};
  CaseRun run(engine, shape);
  const int rows = run.problem.batch().qo_indptr.back();
  std::vector<std::uint8_t> bits(std::size_t(rows) * kBytes);
  std::vector<int> seen(static_cast<std::size_t>(rows));
  for (int row = 0; row < rows; ++row)
    for (int key = 0; key < kKeys; ++key)
      if (sees(row, key))
        bits[std::size_t(row * kBytes + key / 8)] |= std::uint8_t(1 << key % 8),
            ++seen[std::size_t(row)];
  tools::DeviceMemory memory(engine, bits.size());
  memory.write(0, std::as_bytes(std::span(bits)));
  Tensors tensors = run.problem.tensors();
  tensors.variant["bits"] = tools::tensor_of(memory.data(), DType::u8, {rows, kBytes});
  run.plan();
  if (!run.is_cut()) return "nothing was cut, so nothing was tried";
  run.run(tensors);
  return rows_see(run, 1.5, 8.0, [&](int row) { return seen[std::size_t(row)]; });
}

std::vector<ProblemShape> over(
    const AttentionConfig& config,
    const std::vector<std::pair<std::vector<int>, std::vector<int>>>& lengths) {
  std::vector<ProblemShape> shapes;
  for (const auto& [qo, kv] : lengths)
    shapes.push_back({.config = config, .qo_lens = qo, .kv_lens = kv});
  return shapes;
}

}  // namespace

Found b01(Engine& engine) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    AttentionConfig config = shape_of("softmax", 2, 1, 128, 16);
    config.q_dtype = config.kv_dtype = dtype;
    const Found found = plain_rows(engine,
                                   {.config = config,
                                    .qo_lens = {70},
                                    .kv_lens = {130},
                                    .constant = std::array{64.f, -64.f, 1.5f}},
                                   -524288 / std::sqrt(128.0));
    if (!found.empty()) return found;
  }
  return {};
}

Found b02(Engine& engine) {
  return plain_rows(engine,
                    {.config = shape_of("softmax", 32, 4, 128, 1),
                     .qo_lens = {1},
                     .kv_lens = {2},
                     .constant = std::array{64.f, -64.f, 1.f}},
                    -524288 / std::sqrt(128.0));
}

Found b04(Engine& engine) {
  CaseRun run(engine, {.config = shape_of("causal", 32, 8, 128, 1),
                       .qo_lens = {34},
                       .kv_lens = {1},
                       .constant = std::array{0.f, 1.f, 2.f}});
  if (const Found found = run.judge(); !found.empty()) return found;
  return rows_see(run, 2, 0, [](int row) { return row == 33; });
}

Found b05(Engine& engine) {
  for (const int qo : {2, 3}) {
    CaseRun run(engine,
                {.config = shape_of("causal", 8, 2, 128, 16), .qo_lens = {qo}, .kv_lens = {129}});
    if (const Found found = run.judge(); !found.empty()) return found;
    if (!run.is_cut()) return "nothing was cut, so nothing was tried";
  }
  return {};
}

Found b07(Engine& engine) {
  // None, the first key alone, the last alone, all.
  return masked_rows(engine, [](int row, int key) {
    return row % 4 == 3 || (row % 4 == 1 && key == 0) || (row % 4 == 2 && key == 899);
  });
}

Found b08(Engine& engine) {
  return plain_rows(engine,
                    {.config = shape_of("softmax", 4, 2, 64, 16),
                     .qo_lens = {1, 1, 20, 20},
                     .kv_lens = {0, 40, 0, 700},
                     .constant = std::array{0.f, 1.f, 1.f}},
                    0);
}

Found b10(Engine& engine) {
  const AttentionConfig config = shape_of("softmax", 4, 2, 128, 0);
  return judge_all(engine,
                   over(config, {{{3, 1, 70, 2}, {0, 40, 0, 65}}, {{3, 1, 70}, {0, 0, 0}}}));
}

Found b11(Engine& engine) {
  // The rest of every page, every free page and the gaps between rows hold NaN in any problem.
  for (const int page_size : {4, 16, 32})
    for (const char* variant : {"softmax", "causal"})
      if (const Found found =
              judge_all(engine, over(shape_of(variant, 4, 1, 128, page_size),
                                     {{{1}, {13}}, {{3, 7, 17, 1}, {17, 33, 75, 197}}}));
          !found.empty())
        return found;
  return {};
}

Found b13(Engine& engine) {
  CaseRun run(engine, {.config = shape_of("sliding_window", 4, 1, 64, 16),
                       .params = {{"window", 128}},
                       .qo_lens = {1, 1},
                       .kv_lens = {700, 300}});
  run.problem.poison_keys(0, 0, 699 - 128);
  run.problem.poison_keys(1, 0, 299 - 128);
  return run.judge();
}

Found b14(Engine& engine) {
  return judge_all(engine, over(shape_of("causal", 4, 2, 64, 1), {{{1}, {67}},
                                                                  {{1}, {182}},
                                                                  {{1}, {2011}},
                                                                  {{70}, {2011}},
                                                                  {{1, 1, 1}, {67, 182, 2011}}}));
}

Found b16(Engine& engine) {
  return judge_all(engine, over(shape_of("softmax", 16, 1, 64, 64),
                                {{{1, 1, 1, 1}, {5, 0, 700, 0}}, {{1, 1}, {0, 1}}}));
}

Found b19(Engine& engine) {
  CaseRun run(engine, {.config = shape_of("softmax", 16, 1, 64, 64),
                       .qo_lens = std::vector<int>(16, 1),
                       .kv_lens = std::vector<int>(16, 0),
                       .constant = std::array{1.f, 1.f, 1.f}});
  Tensors tensors = run.problem.tensors();
  tensors.kv_indices = nullptr;
  run.plan();
  run.run(tensors);
  return rows_see(run, 0, 0, [](int) { return 0; });
}

Found b20(Engine& engine) {
  return judge_all(engine, over(shape_of("causal", 4, 2, 64, 16),
                                {{{0, 0, 0}, {40, 0, 17}}, {{0, 5, 0}, {40, 9, 700}}, {{}, {}}}));
}

Found b22(Engine& engine) {
  const AttentionConfig config = shape_of("softmax", 4, 2, 64, 16);
  for (int kv = 630; kv < 650; ++kv) {
    CaseRun run(engine, {.config = config, .qo_lens = {1}, .kv_lens = {kv}}, std::uint64_t(kv));
    if (const Found found = run.judge(); !found.empty()) return found;
    if (!run.is_cut()) return "nothing was cut, so nothing was tried";
  }
  return {};
}

Found b23(Engine& engine) {
  for (const int page_size : {0, 1})
    if (const Found found = plain_rows(engine,
                                       {.config = shape_of("softmax", 1, 1, 64, page_size),
                                        .qo_lens = {1},
                                        .kv_lens = {33728},
                                        .constant = std::array{0.f, 0.f, 0.f}},
                                       0);
        !found.empty())
      return found;
  return judge_all(engine, over(shape_of("causal", 1, 1, 32, 1), {{{1}, {33728}}}));
}

Found b25(Engine& engine) {
  if (const Found found = masked_rows(engine, [](int, int key) { return key < 10; });
      !found.empty())
    return found;
  return masked_rows(engine, [](int, int key) { return key >= 890; });
}

Found b26(Engine& engine) {
  for (const int kv : {1, 16, 64, 65, 255, 256, 257})
    for (const int qo : {1, 3, 20})
      if (const Found found = plain_rows(engine,
                                         {.config = shape_of("softmax", 8, 2, 128, 16),
                                          .qo_lens = {qo},
                                          .kv_lens = {kv},
                                          .constant = std::array{0.f, 1.f, 1.f}},
                                         0);
          !found.empty())
        return found;
  return {};
}

Found b127(Engine& engine) {
  constexpr int kWhole = 300, kSplit = 100;
  CaseRun run(engine,
              {.config = shape_of("softmax", 4, 2, 64, 0), .qo_lens = {2}, .kv_lens = {kWhole}});
  if (const Found found = run.judge(); !found.empty()) return found;
  const std::vector<double> whole = run.o(), whole_lse = run.lse();
  std::vector<double> o[2], lse[2];
  for (int half = 0; half < 2; ++half) {
    Tensors tensors = run.problem.tensors();
    for (Tensor* t : {&tensors.k, &tensors.v}) {
      t->data = static_cast<std::uint16_t*>(t->data) + (half ? kSplit : 0) * t->strides[0];
      t->shape[0] = half ? kWhole - kSplit : kSplit;
    }
    const std::vector<std::int32_t> qo_indptr{0, 2}, kv_indptr{0, half ? kWhole - kSplit : kSplit};
    run.attention.plan({.qo_indptr = qo_indptr, .kv_indptr = kv_indptr}, run.workspace);
    run.run(tensors);
    o[half] = run.o(), lse[half] = run.lse();
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::size_t row = i / 64;
    const double a = std::exp(lse[0][row] - whole_lse[row]),
                 b = std::exp(lse[1][row] - whole_lse[row]);
    if (std::abs(a + b - 1) > 1e-3) return fmt::format("the halves weigh {}, not 1", a + b);
    if (std::abs(a * o[0][i] + b * o[1][i] - whole[i]) > 0.01)
      return fmt::format("the halves make {}, the whole {}", a * o[0][i] + b * o[1][i], whole[i]);
  }
  return {};
}

Found b128(Engine& engine) {
  return plain_rows(engine,
                    {.config = shape_of("softmax", 4, 1, 64, 16),
                     .qo_lens = {1, 30, 1},
                     .kv_lens = {5, 300, 700},
                     .constant = std::array{0.f, 1.f, 1.f}},
                    0);
}

Found b139(Engine& engine) {
  const AttentionConfig config = shape_of("causal", 64, 16, 128, 16);
  CaseRun nan(engine, {.config = config,
                       .qo_lens = {64, 1},
                       .kv_lens = {100, 300},
                       .constant = std::array{1.f, std::nanf(""), std::nanf("")}});
  nan.plan();
  nan.run(nan.problem.tensors());
  return judge_all(engine,
                   over(config, {{{33, 11, 11, 11, 11, 12, 11}, {17, 12, 15, 4, 18, 34, 28}}}));
}

}  // namespace heddle_tests
