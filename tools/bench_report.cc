#include "tools/bench_report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "tools/json.h"

namespace heddle::tools {
namespace {

std::optional<double> of_read(const BenchRow& row, const Ceilings& ceilings) {
  if (!ceilings.read_tbps) return std::nullopt;
  return row.tbps / *ceilings.read_tbps;
}

nlohmann::ordered_json json_or_null(std::optional<double> value, int digits) {
  return value ? nlohmann::ordered_json(rounded(*value, digits)) : nlohmann::ordered_json(nullptr);
}

const PeerTime* peer_of(const BenchRow& row, const BestPeers* best) {
  if (!best || !row.not_run.empty()) return nullptr;
  const auto found = best->find(row.workload);
  return found == best->end() ? nullptr : &found->second;
}

std::string text_of(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

std::optional<double> Ceilings::read_us(double bytes) const {
  if (!read_tbps) return std::nullopt;
  return bytes / *read_tbps / 1e6;
}

nlohmann::ordered_json row_json(const BenchRow& row, const Ceilings& ceilings,
                                const BestPeers* best) {
  nlohmann::ordered_json entry{{"workload", row.workload}, {"peer", "heddle"}};
  if (row.batch_invariant) entry["batch_invariant"] = true;
  if (!row.not_run.empty()) {
    entry["error"] = row.not_run;
    return entry;
  }
  entry["us"] = rounded(row.us, 2);
  entry["TBps"] = rounded(row.tbps, 3);
  entry["TFLOPs"] = rounded(row.tflops, 1);
  entry["of_read"] = json_or_null(of_read(row, ceilings), 3);
  entry["err"] = fmt::format("{:.1e}", row.err);
  entry["plan_us"] = rounded(row.plan_us, 1);
  entry["first_s"] = rounded(row.first_s, 3);
  if (const PeerTime* peer = peer_of(row, best)) {
    entry["best_peer"] = peer->peer;
    entry["best_peer_us"] = peer->us;
    entry["of_best_peer"] = rounded(peer->us / row.us, 3);
  }
  if (!row.plain.empty()) {
    entry["plain"] = row.plain;
    entry["of_plain"] = rounded(row.of_plain, 3);
  }
  if (!row.beside.empty()) {
    entry["beside"] = row.beside;
    entry["of_time"] = rounded(row.of_time, 3);
    entry["of_work"] = rounded(row.of_work, 4);
    entry["over_work"] = rounded(row.of_time / row.of_work, 3);
  }
  return entry;
}

BestPeers best_peers(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json(json, file);
  if (!root.is_object() || !root.contains("rows") || !root.at("rows").is_array()) {
    fail(ErrorKind::invalid_argument,
         "{} has no list \"rows\"; --beside takes what a run over the peers wrote.", file);
  }
  BestPeers best;
  for (const nlohmann::json& row : root.at("rows")) {
    if (!row.is_object() || row.contains("error") || !row.contains("us")) continue;
    const std::string workload = text_of(row, "workload"), peer = text_of(row, "peer");
    if (!row.at("us").is_number() || peer == "heddle") continue;
    const double us = row.at("us").get<double>();
    if (!(us > 0)) continue;
    const auto [entry, is_new] = best.try_emplace(workload, PeerTime{peer, us});
    if (!is_new && us < entry->second.us) entry->second = {peer, us};
  }
  return best;
}

nlohmann::ordered_json bench_json(const std::string& device, const Ceilings& ceilings,
                                  const std::vector<BenchRow>& rows, const BestPeers* best) {
  nlohmann::ordered_json root;
  root["device"] = device;
  root["ceilings"] = {{"read_TBps", json_or_null(ceilings.read_tbps, 3)},
                      {"matmul_TFLOPs", json_or_null(ceilings.matmul_tflops, 1)}};
  if (!ceilings.read_tbps) root["ceilings"]["why_no_read"] = ceilings.why_no_read;
  if (!ceilings.matmul_tflops) root["ceilings"]["why_no_matmul"] = ceilings.why_no_matmul;
  root["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) root["rows"].push_back(row_json(row, ceilings, best));
  return root;
}

std::string ceilings_line(const Ceilings& ceilings) {
  const std::string read = ceilings.read_tbps
                               ? fmt::format("{:.2f} TB/s", *ceilings.read_tbps)
                               : fmt::format("not measured ({})", ceilings.why_no_read);
  const std::string matmul = ceilings.matmul_tflops
                                 ? fmt::format("{:.0f} TFLOP/s", *ceilings.matmul_tflops)
                                 : fmt::format("not measured ({})", ceilings.why_no_matmul);
  return fmt::format("ceilings: plain read {}, bf16 matmul {}", read, matmul);
}

std::string bench_head(const BestPeers* best) {
  return fmt::format("{:<29}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{}", "workload", "us", "TB/s",
                     "TFLOP/s", "of read", "err", "plan us", "first s",
                     best ? "  of best peer" : "");
}

std::string bench_line(const BenchRow& row, const Ceilings& ceilings, const BestPeers* best) {
  if (!row.not_run.empty()) return fmt::format("{:<29}not run: {}", row.workload, row.not_run);
  const auto share = of_read(row, ceilings);
  std::string line =
      fmt::format("{:<29}{:>10.2f}{:>8.2f}{:>9.1f}{:>9}{:>9.1e}{:>9.1f}{:>9.2f}", row.workload,
                  row.us, row.tbps, row.tflops, share ? fmt::format("{:.2f}", *share) : "-",
                  row.err, row.plan_us, row.first_s);
  if (const PeerTime* peer = peer_of(row, best)) {
    line += fmt::format("  {:.2f}x {} ({:.1f} us)", peer->us / row.us, peer->peer, peer->us);
  } else if (best) {
    line += "  -";
  }
  return line;
}

std::string plain_table(const std::vector<BenchRow>& rows) {
  std::string table;
  for (const BenchRow& row : rows) {
    if (row.plain.empty()) continue;
    if (table.empty())
      table = fmt::format("{:<29}{:>8}{:>10}  {}\n", "beside plain softmax", "TB/s", "of plain",
                          "plain");
    table += fmt::format("{:<29}{:>8.2f}{:>10.2f}  {}\n", row.workload, row.tbps, row.of_plain,
                         row.plain);
  }
  return table;
}

std::string beside_table(const std::vector<BenchRow>& rows) {
  std::string table;
  for (const BenchRow& row : rows) {
    if (row.beside.empty()) continue;
    if (table.empty())
      table = fmt::format("{:<29}{:>10}{:>10}{:>8}{:>8}{:>8}{:>9}{:>9}  {}\n", "beside another row", "us", "its us", "time",
                          "work", "of work", "plan us", "its", "row");
    table += fmt::format("{:<29}{:>10.2f}{:>10.2f}{:>8.3f}{:>8.3f}{:>8.2f}{:>9.1f}{:>9.1f}  {}\n", row.workload, row.us,
                         row.beside_us, row.of_time, row.of_work, row.of_time / row.of_work, row.plan_us,
                         row.beside_plan_us, row.beside);
  }
  return table;
}

}  // namespace heddle::tools
