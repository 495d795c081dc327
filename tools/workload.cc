#include "tools/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "planner/lengths.h"
#include "tools/json.h"
#include "variants/nearest.h"

namespace heddle::tools {

std::int64_t Workload::num_qo_rows() const {
  return std::accumulate(qo_lens.begin(), qo_lens.end(), std::int64_t{0});
}

std::int64_t Workload::num_kv_tokens() const {
  return std::accumulate(kv_lens.begin(), kv_lens.end(), std::int64_t{0});
}

double Workload::bytes() const {
  double keys = 0;
  for (std::size_t r = 0; r < kv_lens.size(); ++r) {
    keys += window_left < 0 ? kv_lens[r]
                            : std::min<double>(kv_lens[r], double(window_left) + qo_lens[r]);
  }
  const double element = 2;
  return element * (keys * heads.num_kv_heads * 2 * heads.head_dim +
                    double(num_qo_rows()) * heads.num_qo_heads * 2 * heads.head_dim);
}

double Workload::flops() const {
  double pairs = 0;
  for (std::size_t r = 0; r < kv_lens.size(); ++r) {
    const std::int64_t qo_len = qo_lens[r], kv_len = kv_lens[r];
    for (std::int64_t i = 0; i < qo_len; ++i) {
      const std::int64_t q_pos = kv_len - qo_len + i;
      const std::int64_t end = causal ? q_pos + 1 : kv_len;
      const std::int64_t begin =
          window_left >= 0 ? std::max<std::int64_t>(0, q_pos - window_left) : 0;
      pairs += double(std::max<std::int64_t>(0, end - begin));
    }
  }
  return 4.0 * heads.head_dim * heads.num_qo_heads * pairs;
}

int Workload::layers() const {
  const double l2_bytes = 60 << 20;
  const double kv_bytes = 4.0 * double(num_kv_tokens()) * heads.num_kv_heads * heads.head_dim;
  return int(std::clamp(std::ceil(4 * l2_bytes / std::max(1.0, kv_bytes)), 2.0, 24.0));
}

namespace {

// The value of `key` in one entry, or an error that names the workload and the key.
template <typename T>
T field(const nlohmann::json& entry, const char* key, const std::string& where) {
  if (!entry.contains(key)) {
    fail(ErrorKind::invalid_argument,
         "{} has no \"{}\"; a workload has name, kind, qo, kv, heads and page.", where, key);
  }
  try {
    return entry.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::invalid_argument, "{} has {} as \"{}\", which is of the wrong type.", where,
         entry.at(key).dump(), key);
  }
}

template <typename T>
T field_or(const nlohmann::json& entry, const char* key, T otherwise, const std::string& where) {
  return entry.contains(key) ? field<T>(entry, key, where) : otherwise;
}

std::vector<std::int32_t> lengths(const nlohmann::json& entry, const char* key,
                                  const std::string& where) {
  if (!entry.contains(key)) field<std::string>(entry, key, where);
  const nlohmann::json& rule = entry.at(key);
  return parse_lengths(rule.is_string() ? rule.get<std::string>() : rule.dump());
}

void check_keys(const nlohmann::json& entry, const std::string& where) {
  static const std::vector<std::string> known = {
      "name", "kind", "qo", "kv", "heads", "page", "causal", "soft_cap", "window_left"};
  for (const auto& [key, value] : entry.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(ErrorKind::invalid_argument, "{} has an unknown key \"{}\"; {}.", where, key,
         offer(key, known));
  }
}

Workload read_workload(const nlohmann::json& entry, const std::string& file) {
  Workload w;
  w.name = field<std::string>(entry, "name", fmt::format("A workload of {}", file));
  const std::string where = fmt::format("The workload {} of {}", w.name, file);
  check_keys(entry, where);
  w.kind = field<std::string>(entry, "kind", where);
  w.qo_lens = lengths(entry, "qo", where);
  w.kv_lens = lengths(entry, "kv", where);
  if (w.qo_lens.size() != w.kv_lens.size()) {
    fail(ErrorKind::invalid_argument,
         "{} has {} query lengths and {} KV lengths; it needs one of each a request.", where,
         w.qo_lens.size(), w.kv_lens.size());
  }
  const auto heads = field<std::vector<int>>(entry, "heads", where);
  w.heads = parse_heads(fmt::format("{}", fmt::join(heads, ",")));
  w.page_size = field<int>(entry, "page", where);
  w.causal = field_or(entry, "causal", false, where);
  w.soft_cap = field_or(entry, "soft_cap", 0.0, where);
  w.window_left = field_or(entry, "window_left", -1, where);
  return w;
}

}  // namespace

std::vector<Workload> read_workloads(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json(json, file);
  if (!root.is_object() || !root.contains("workloads") || !root.at("workloads").is_array()) {
    fail(ErrorKind::invalid_argument, "{} has no list \"workloads\".", file);
  }
  std::vector<Workload> workloads;
  for (const nlohmann::json& entry : root.at("workloads")) {
    if (!entry.is_object()) {
      fail(ErrorKind::invalid_argument, "{} has {} among its workloads; each is an object.", file,
           entry.dump());
    }
    workloads.push_back(read_workload(entry, file));
  }
  return workloads;
}

WorkloadVariant variant_of(const Workload& w) {
  WorkloadVariant result;
  std::vector<std::string> parts;
  if (w.soft_cap > 0) parts.push_back("soft_cap");
  if (w.window_left >= 0) parts.push_back("sliding_window");
  if (w.causal && w.window_left < 0) parts.push_back("causal");
  if (parts.empty()) parts.push_back("softmax");
  if (w.soft_cap > 0) result.params["cap"] = w.soft_cap;
  if (w.window_left >= 0) result.params["window"] = w.window_left;
  result.json = fmt::format(R"({{"name": "bench_{}", "compose": ["{}"]}})", fmt::join(parts, "_"),
                            fmt::join(parts, "\", \""));
  return result;
}

}  // namespace heddle::tools
