#include "tools/bench_report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "tools/json.h"

namespace heddle::tools {
namespace {

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

std::optional<double> of_read(const BenchRow& row, const Ceilings& ceilings) {
  if (!ceilings.read_tbps) return std::nullopt;
  return row.tbps / *ceilings.read_tbps;
}

nlohmann::ordered_json json_or_null(std::optional<double> value, int digits) {
  return value ? nlohmann::ordered_json(rounded(*value, digits)) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::map<std::string, PeerTime> read_best_peers(const std::string& path) {
  const nlohmann::json root = parse_json(read_text_file(path), path);
  if (!root.is_object() || !root.contains("rows") || !root.at("rows").is_array()) {
    fail(ErrorKind::invalid_argument,
         "{} has no list \"rows\"; --beside takes what a run over the peers wrote.", path);
  }
  std::map<std::string, PeerTime> best;
  for (const nlohmann::json& row : root.at("rows")) {
    if (!row.is_object() || !row.contains("us") || !row.at("us").is_number()) continue;
    const std::string workload = row.value("workload", ""), peer = row.value("peer", "");
    const double us = row.at("us").get<double>();
    if (peer == "heddle") continue;
    const auto [entry, is_new] = best.try_emplace(workload, PeerTime{peer, us});
    if (!is_new && us < entry->second.us) entry->second = {peer, us};
  }
  return best;
}

nlohmann::ordered_json bench_json(const std::string& device, const Ceilings& ceilings,
                                  const std::vector<BenchRow>& rows) {
  nlohmann::ordered_json root;
  root["device"] = device;
  root["ceilings"] = {{"read_TBps", json_or_null(ceilings.read_tbps, 3)},
                      {"matmul_TFLOPs", json_or_null(ceilings.matmul_tflops, 1)}};
  if (!ceilings.read_tbps) root["ceilings"]["why_no_read"] = ceilings.why_no_read;
  if (!ceilings.matmul_tflops) root["ceilings"]["why_no_matmul"] = ceilings.why_no_matmul;
  root["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    nlohmann::ordered_json entry{{"workload", row.workload}, {"peer", "heddle"}};
    if (row.not_run.empty()) {
      entry["us"] = rounded(row.us, 2);
      entry["TBps"] = rounded(row.tbps, 3);
      entry["TFLOPs"] = rounded(row.tflops, 1);
      entry["of_read"] = json_or_null(of_read(row, ceilings), 3);
      entry["err"] = fmt::format("{:.1e}", row.err);
      entry["plan_us"] = rounded(row.plan_us, 1);
      entry["first_s"] = rounded(row.first_s, 3);
    } else {
      entry["error"] = row.not_run;
    }
    root["rows"].push_back(entry);
  }
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

std::string bench_head(bool beside) {
  return fmt::format("{:<24}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{}", "workload", "us", "TB/s",
                     "TFLOP/s", "of read", "err", "plan us", "first s",
                     beside ? "  of best peer" : "");
}

std::string bench_line(const BenchRow& row, const Ceilings& ceilings, bool beside,
                       const PeerTime* best) {
  if (!row.not_run.empty()) return fmt::format("{:<24}not run: {}", row.workload, row.not_run);
  const auto share = of_read(row, ceilings);
  std::string line =
      fmt::format("{:<24}{:>10.2f}{:>8.2f}{:>9.1f}{:>9}{:>9.1e}{:>9.1f}{:>9.2f}", row.workload,
                  row.us, row.tbps, row.tflops, share ? fmt::format("{:.2f}", *share) : "-",
                  row.err, row.plan_us, row.first_s);
  if (beside && best)
    line += fmt::format("  {:.2f}x {} ({:.1f} us)", best->us / row.us, best->peer, best->us);
  if (beside && !best) line += "  -";
  return line;
}

}  // namespace heddle::tools
