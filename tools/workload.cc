#include "tools/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

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

void check_shared(const std::vector<SharedLevel>& levels, int page_size, const std::vector<std::int32_t>& kv_lens,
                  const std::string& where) {
  std::int64_t keys = 0;
  int around = 0;
  for (const SharedLevel& level : levels) {
    if (level.requests < 1 || around % level.requests != 0)
      fail(ErrorKind::invalid_argument, "{} shares among {} requests; each level's must divide those of the level in front.",
           where, level.requests);
    if (page_size < 1 || level.keys < 1 || level.keys % page_size != 0)
      fail(ErrorKind::invalid_argument, "{} shares {} keys on pages of {}; it must be whole pages.", where, level.keys,
           page_size);
    around = level.requests;
    keys += level.keys;
  }
  for (const std::int32_t length : kv_lens)
    if (length < keys)
      fail(ErrorKind::invalid_argument, "{} shares {} keys, and has a request of {}.", where, keys, length);
}

VisibleKeys visible_keys(const MaskBounds& mask, int qo_len, int kv_len, int row) {
  const std::int64_t q_pos = std::int64_t{kv_len} - qo_len + row;
  const std::int64_t right = mask.causal ? 0 : mask.window_right;
  VisibleKeys keys;
  keys.end = std::clamp<std::int64_t>(q_pos + right + 1, 0, kv_len);
  keys.begin = std::clamp<std::int64_t>(q_pos - mask.window_left, 0, keys.end);
  keys.sinks = std::min<std::int64_t>(mask.sink, keys.begin);
  return keys;
}

VisibleKeys Workload::keys_of(int request, int row) const {
  VisibleKeys keys = visible_keys(mask, qo_lens[request], kv_lens[request], row);
  if (ranges.first.empty()) return keys;
  const std::size_t q_row =
      std::size_t(std::accumulate(qo_lens.begin(), qo_lens.begin() + request, std::int64_t{0})) + std::size_t(row);
  keys.begin = std::max<std::int64_t>(keys.begin, ranges.first[q_row]);
  keys.end = std::max(keys.begin, std::min<std::int64_t>(keys.end, ranges.end[q_row]));
  return keys;
}

namespace {

// Keys of the requests' sum that are those of a request in front: of every group all but one.
double shared_keys(const Workload& w) {
  double keys = 0;
  for (const SharedLevel& level : w.shared) {
    const std::size_t n = level.requests, groups = (w.kv_lens.size() + n - 1) / n;
    keys += double(level.keys) * double(w.kv_lens.size() - groups);
  }
  return keys;
}

}  // namespace

double Workload::kv_bytes() const {
  double keys = pool_keys > 0 ? pool_keys : -shared_keys(*this);
  for (std::size_t r = 0; r < kv_lens.size(); ++r) {
    if (qo_lens[r] == 0 || pool_keys > 0) continue;
    // The rows' windows touch, and so do documents and a prefix: together they reach from the first one's begin on.
    VisibleKeys all = keys_of(int(r), 0);
    all.end = keys_of(int(r), qo_lens[r] - 1).end;
    keys += double(all.count());
  }
  return keys * heads.num_kv_heads * (heads.head_dim + heads.vo_dim()) * bytes_of(dtype);
}

double Workload::bytes() const {
  return kv_bytes() +
         double(num_qo_rows()) * heads.num_qo_heads * (heads.head_dim + heads.vo_dim()) * bytes_of(dtype);
}

double Workload::flops() const {
  double pairs = 0;
  for (std::size_t r = 0; r < kv_lens.size(); ++r) {
    for (int i = 0; i < qo_lens[r]; ++i) pairs += double(keys_of(int(r), i).count());
  }
  return 2.0 * (heads.head_dim + heads.vo_dim()) * heads.num_qo_heads * pairs;
}

int Workload::layers() const {
  const double l2_bytes = 60 << 20;
  return int(
      std::clamp(std::ceil(4 * l2_bytes / std::max(1.0, kv_bytes())), 2.0, double(max_layers)));
}

bool Workload::is_plain_decode() const {
  return kind == "decode" && (variant.empty() || variant == "softmax") && compose.empty() && soft_cap == 0 &&
         window_left < 0 && !causal && documents == 0 && prefix == 0 && !share_prefixes && shared.empty() && pool_keys == 0;
}

bool Workload::has_shape_of(const Workload& other) const {
  const auto shape = [](const Workload& w) {
    return std::tuple(w.kind, w.qo_lens, w.kv_lens, w.heads.num_qo_heads, w.heads.num_kv_heads,
                      w.heads.head_dim, w.heads.vo_dim(), w.page_size, w.dtype, w.batch_invariant, w.portable);
  };
  return shape(*this) == shape(other);
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
      "name",   "kind",     "qo",          "kv",      "heads",  "page",            "dtype",
      "causal", "soft_cap", "window_left", "variant", "params", "batch_invariant", "compose",
      "beside", "shared",   "pool",        "share_prefixes", "portable", "documents", "prefix"};
  for (const auto& [key, value] : entry.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(ErrorKind::invalid_argument, "{} has an unknown key \"{}\"; {}.", where, key,
         offer(key, known));
  }
}

// What rows see and what is done to their logits: a variant, or the three keys in its place.
void read_rule(const nlohmann::json& entry, const std::string& where, Workload& w) {
  w.variant = field_or(entry, "variant", std::string(), where);
  w.compose = field_or(entry, "compose", std::vector<std::string>(), where);
  const bool is_named = !w.variant.empty() || !w.compose.empty();
  for (const char* key : {"causal", "soft_cap", "window_left", "compose"}) {
    if (!is_named || !entry.contains(key) || (w.variant.empty() && key == std::string_view("compose"))) continue;
    fail(ErrorKind::invalid_argument, "{} has both \"{}\" and \"{}\"; a variant says that itself.", where,
         w.variant.empty() ? "compose" : "variant", key);
  }
  if (!is_named && entry.contains("params"))
    fail(ErrorKind::invalid_argument, "{} has \"params\" without a \"variant\" to take them.",
         where);
  w.params = field_or(entry, "params", ParamValues(), where);
  w.documents = field_or(entry, "documents", 0, where);
  w.prefix = field_or(entry, "prefix", 0, where);
  if (w.documents < 0 || w.prefix < 0 || (w.documents > 0 && w.prefix > 0))
    fail(ErrorKind::invalid_argument,
         "{} has \"documents\" of {} keys and a \"prefix\" of {}; they must not be negative, and one of the two must be 0.", where,
         w.documents, w.prefix);
  w.causal = field_or(entry, "causal", false, where);
  w.soft_cap = field_or(entry, "soft_cap", 0.0, where);
  w.window_left = field_or(entry, "window_left", -1, where);
  w.mask.causal = w.causal || w.window_left >= 0;
  if (w.window_left >= 0) w.mask.window_left = w.window_left;
}

// Which keys requests have in common.
void read_pages(const nlohmann::json& entry, const std::string& where, Workload& w) {
  w.share_prefixes = field_or(entry, "share_prefixes", false, where);
  w.pool_keys = field_or(entry, "pool", 0, where);
  for (const auto& [requests, keys] : field_or(entry, "shared", std::vector<std::pair<int, int>>(), where))
    w.shared.push_back({requests, keys});
  check_shared(w.shared, w.page_size, w.kv_lens, where);
  if (w.pool_keys == 0) return;
  if (!w.shared.empty() || w.page_size < 1 || w.pool_keys % w.page_size != 0)
    fail(ErrorKind::invalid_argument, "{} has a \"pool\" of {} keys; it must be whole pages of {}, without \"shared\".",
         where, w.pool_keys, w.page_size);
  for (const std::int32_t length : w.kv_lens)
    if (length > w.pool_keys)
      fail(ErrorKind::invalid_argument, "{} has a request of {} keys and a \"pool\" of {}.", where, length, w.pool_keys);
}

DType read_dtype(const nlohmann::json& entry, const std::string& where) {
  const std::string text = field_or(entry, "dtype", std::string("bf16"), where);
  if (text != "bf16" && text != "f16") {
    fail(ErrorKind::invalid_argument, "{} has \"{}\" as \"dtype\"; it is bf16 or f16.", where,
         text);
  }
  return parse_dtype(text);
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
  w.dtype = read_dtype(entry, where);
  w.batch_invariant = field_or(entry, "batch_invariant", false, where);
  w.portable = field_or(entry, "portable", false, where);
  w.beside = field_or(entry, "beside", std::string(), where);
  read_rule(entry, where, w);
  read_pages(entry, where, w);
  return w;
}

void read_list(const nlohmann::json& list, const std::string& table, const std::string& file,
               std::vector<Workload>& workloads) {
  for (const nlohmann::json& entry : list) {
    if (!entry.is_object()) {
      fail(ErrorKind::invalid_argument, "{} has {} among its workloads; each is an object.", file,
           entry.dump());
    }
    workloads.push_back(read_workload(entry, file));
    workloads.back().table = table;
  }
}

void check_beside(const std::vector<Workload>& workloads, const std::string& file) {
  std::vector<std::string> names;
  for (const Workload& w : workloads) names.push_back(w.name);
  for (const Workload& w : workloads) {
    if (w.beside.empty() || std::find(names.begin(), names.end(), w.beside) != names.end()) continue;
    fail(ErrorKind::invalid_argument, "The workload {} of {} stands beside an unknown one, \"{}\"; {}.", w.name, file,
         w.beside, offer(w.beside, names));
  }
}

}  // namespace

std::vector<Workload> read_workloads(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json(json, file);
  if (!root.is_object() || !root.contains("workloads") || !root.at("workloads").is_array()) {
    fail(ErrorKind::invalid_argument, "{} has no list \"workloads\".", file);
  }
  std::vector<Workload> workloads;
  read_list(root.at("workloads"), "", file, workloads);
  const nlohmann::json tables = root.value("tables", nlohmann::json::object());
  for (const auto& [table, list] : tables.items()) read_list(list, table, file, workloads);
  check_beside(workloads, file);
  return workloads;
}

}  // namespace heddle::tools
