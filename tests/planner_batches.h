// Batches for the planner's tests: lengths that own their arrays, and seeded random cases.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "planner/lengths.h"
#include "planner/plan.h"

namespace heddle_tests {

using namespace heddle;

// A range for a row of a request, of a kind that the request's lengths choose: documents, a prefix, any two ends, two
// rows of three without a key, a window. It is the same wherever the request stands in a batch.
struct RowRange {
  std::int32_t first, end;
};
inline RowRange range_of(std::int32_t qo_len, std::int32_t kv_len, std::int32_t row) {
  std::uint32_t state = static_cast<std::uint32_t>(kv_len) * 977u + static_cast<std::uint32_t>(qo_len);
  const auto below = [&state](std::int32_t bound) {
    state = state * 1664525u + 1013904223u;
    return static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(bound));
  };
  const std::int32_t kind = below(5), length = 1 + below(300), place = kv_len - qo_len + row, q_pos = std::max(place, 0);
  if (kind == 0) return {q_pos / length * length, std::min((q_pos / length + 1) * length, kv_len)};
  if (kind == 1) return {0, std::min(std::max(place + 1, length), kv_len)};
  if (kind == 2) {
    state ^= static_cast<std::uint32_t>(row) * 2654435761u;
    const std::int32_t first = below(kv_len + 1);
    return {first, below(kv_len + 1)};
  }
  if (kind == 3 && row % 3 != 0) return {kv_len + 7, -2};
  return {std::max(q_pos - length, 0), std::min(q_pos + length, kv_len)};
}

// A batch with its arrays: pages as CSR, as a dense table, or ragged (page_size 0).
struct OwnedBatch {
  std::vector<std::int32_t> qo_indptr{0}, kv_indptr, last_page_len, kv_lens;
  std::int64_t stride = 0;
  std::vector<std::int32_t> first_keys, end_keys;

  OwnedBatch(const std::vector<std::int32_t>& qo, const std::vector<std::int32_t>& kv,
             int page_size, bool table = false) {
    for (const std::int32_t n : qo) qo_indptr.push_back(qo_indptr.back() + n);
    if (table) {
      kv_lens = kv;
      for (const std::int32_t n : kv)
        stride = std::max<std::int64_t>(stride, (n + page_size - 1) / page_size + 3);
      return;
    }
    kv_indptr.push_back(0);
    for (const std::int32_t n : kv) {
      const std::int32_t pages = page_size == 0 ? n : (n + page_size - 1) / page_size;
      kv_indptr.push_back(kv_indptr.back() + pages);
      if (page_size > 0) last_page_len.push_back(n == 0 ? 0 : n - (pages - 1) * page_size);
    }
  }

  void give_ranges(const std::vector<std::int32_t>& qo, const std::vector<std::int32_t>& kv) {
    for (std::size_t r = 0; r < qo.size(); ++r)
      for (std::int32_t row = 0; row < qo[r]; ++row) {
        const RowRange range = range_of(qo[r], kv[r], row);
        first_keys.push_back(range.first);
        end_keys.push_back(range.end);
      }
  }

  Batch view() const { return {qo_indptr, kv_indptr, last_page_len, stride, kv_lens, {}, first_keys, end_keys}; }
};

// Bytes aligned as a plan wants them.
struct PlanBytes {
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  explicit PlanBytes(std::size_t size) : lines((size + 255) / 256 + 1) {}
  std::span<std::byte> span() { return {lines.data()->bytes, lines.size() * 256}; }
  std::span<const std::byte> view() const { return {lines.data()->bytes, lines.size() * 256}; }
  std::vector<Line> lines;
};

// 132 SMs as in the named workloads; both pipelines, tile_kv 64, 8 kv heads, group 4.
inline PlanConfig named_config(int decode_ctas = 132, int append_ctas = 132) {
  PlanConfig config;
  config.num_kv_heads = 8;
  config.group = 4;
  config.head_dim = 128;
  config.page_size = 16;
  config.pipeline[0] = {true, decode_ctas, 16, 64, {}};
  config.pipeline[1] = {true, append_ctas, 128, 64, {}};
  return config;
}

inline Maxima maxima_of(const std::vector<std::int32_t>& qo, const std::vector<std::int32_t>& kv) {
  Maxima maxima;
  maxima.max_requests = static_cast<int>(qo.size());
  for (const std::int32_t n : qo) maxima.max_qo_rows += n;
  for (const std::int32_t n : kv) maxima.max_kv_tokens += n;
  return maxima;
}

struct Planned {
  PlanSummary summary;
  WorkspaceLayout layout;
  PlanBytes bytes;
};

inline Planned plan_of(const PlanConfig& config, const std::vector<std::int32_t>& qo,
                       const std::vector<std::int32_t>& kv, const MaskBounds& mask = {},
                       bool table = false) {
  Planner planner(config, maxima_of(qo, kv));
  OwnedBatch batch(qo, kv, config.page_size, table);
  if (config.rows_given) batch.give_ranges(qo, kv);
  Planned planned{{}, planner.layout(), PlanBytes(planner.layout().plan_bytes)};
  planned.summary = planner.plan(batch.view(), mask, planned.bytes.span());
  return planned;
}

inline constexpr std::string_view kNamedBatches[] = {
    "1x131072+255x1024", "zipf:256:65536", "uniform:64:256:16384", "64x4096", "10000x300"};

}  // namespace heddle_tests
