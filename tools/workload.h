// A named workload of `bench`, and what it would cost a perfect machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/options.h"

namespace heddle::tools {

struct Workload {
  std::string name;
  std::string kind;                            // decode, append or mla
  std::vector<std::int32_t> qo_lens, kv_lens;  // [num_requests]
  Heads heads;
  int page_size = 0;  // 0: ragged
  bool causal = false;
  double soft_cap = 0;   // 0: none
  int window_left = -1;  // -1: none

  std::int64_t num_qo_rows() const;
  std::int64_t num_kv_tokens() const;
  // K and V rows that some query sees, each once, and q and o, in 16-bit elements.
  double bytes() const;
  // Two products over the visible (row, key) pairs of every query head.
  double flops() const;
  // Copies of K and V that together are well past the 60 MiB of L2, so that none is served from
  // there: 2 to 24.
  int layers() const;
};

std::vector<Workload> read_workloads(std::string_view json, const std::string& file);

// The text of a spec that composes what the workload asks for, and the values of its params.
struct WorkloadVariant {
  std::string json;
  ParamValues params;
};
WorkloadVariant variant_of(const Workload& workload);

}  // namespace heddle::tools
