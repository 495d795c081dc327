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

// A batch with its arrays: pages as CSR, as a dense table, or ragged (page_size 0).
struct OwnedBatch {
  std::vector<std::int32_t> qo_indptr{0}, kv_indptr, last_page_len, kv_lens;
  std::int64_t stride = 0;

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

  Batch view() const { return {qo_indptr, kv_indptr, last_page_len, stride, kv_lens}; }
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
  const OwnedBatch batch(qo, kv, config.page_size, table);
  Planned planned{{}, planner.layout(), PlanBytes(planner.layout().plan_bytes)};
  planned.summary = planner.plan(batch.view(), mask, planned.bytes.span());
  return planned;
}

inline constexpr std::string_view kNamedBatches[] = {
    "1x131072+255x1024", "zipf:256:65536", "uniform:64:256:16384", "64x4096", "10000x300"};

}  // namespace heddle_tests
