#include "tools/bench_growth.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace heddle::tools {
namespace {

constexpr int kBatchKeys = 2048;     // a request's, while the batch grows
constexpr double kStandsOut = 1.15;  // of a line: marked from there on
constexpr int kManyLayers = 512;     // the least row has 0.5 MB of K and V, the L2 60 times that

Workload workload_of(const GrowthRow& row, bool on_gpu) {
  Workload w;
  w.name = row.row.workload;
  w.kind = "decode";
  w.qo_lens.assign(row.batch, 1);
  w.kv_lens.assign(row.batch, row.kv_len);
  w.heads = {32, 8, 128};
  w.page_size = 16;
  w.batch_invariant = row.row.batch_invariant;
  w.max_layers = on_gpu ? kManyLayers : 2;
  return w;
}

Growth growing(const std::string& over, int first, int last, std::int64_t most_keys) {
  Growth growth{.over = over};
  for (std::int64_t n = first; n <= last; n *= 2) {
    GrowthRow row{.batch = over == "batch" ? int(n) : 1,
                  .kv_len = over == "batch" ? kBatchKeys : int(n)};
    row.row.workload = fmt::format("growth_{}_{}", over, n);
    if (std::int64_t{row.batch} * row.kv_len <= most_keys) growth.rows.push_back(row);
  }
  return growth;
}

void compare_to_line(Growth& growth) {
  std::vector<TimedBytes> times;
  for (const GrowthRow& row : growth.rows)
    if (row.row.not_run.empty()) times.push_back({row.row.bytes, row.row.us});
  growth.line = fit_line(times);
  for (GrowthRow& row : growth.rows) {
    const double line_us = growth.line.us_at(row.row.bytes);
    if (row.row.not_run.empty() && line_us > 0) row.of_line = row.row.us / line_us;
  }
}

void compare_to_neighbours(std::vector<GrowthRow>& rows) {
  for (std::size_t i = 1; i + 1 < rows.size(); ++i) {
    const BenchRow &before = rows[i - 1].row, &row = rows[i].row, &after = rows[i + 1].row;
    if (!before.not_run.empty() || !row.not_run.empty() || !after.not_run.empty()) continue;
    const double share = (row.bytes - before.bytes) / (after.bytes - before.bytes);
    rows[i].of_neighbours = row.us / (before.us + share * (after.us - before.us));
  }
}

// Both lines are worth a mark: a hump over several rows hides from neighbours, and a lone row that
// steps out may hide in a bad fit.
const char* mark(const GrowthRow& row) {
  if (row.of_neighbours > kStandsOut) return "  a step";
  return row.of_line > kStandsOut ? "  above the line" : "";
}

std::string ratio(double value) { return value > 0 ? fmt::format("{:.2f}", value) : "-"; }

}  // namespace

std::vector<Growth> growth_rows(std::int64_t most_keys) {
  return {growing("batch", 1, 1024, most_keys), growing("kv_len", 128, 1 << 20, most_keys)};
}

void measure_growth(Engine& engine, RandomBlocks& blocks, Growth& growth, Progress& progress) {
  const bool on_gpu = engine.device().kind == DeviceKind::cuda;
  for (GrowthRow& row : growth.rows) {
    progress.step(row.row.workload);
    row.row = measure(engine, blocks, workload_of(row, on_gpu));
  }
  progress.clear();
  compare_to_line(growth);
  compare_to_neighbours(growth.rows);
}

std::string growth_table(const Growth& growth, const Ceilings& ceilings) {
  std::string table = fmt::format("{:<10}{:>10}{:>12}{:>9}{:>9}{:>15}\n", growth.over, "us",
                                  "ceiling us", "of read", "of line", "of neighbours");
  for (const GrowthRow& row : growth.rows) {
    const int n = growth.over == "batch" ? row.batch : row.kv_len;
    if (!row.row.not_run.empty()) {
      table += fmt::format("{:<10}not run: {}\n", n, row.row.not_run);
      continue;
    }
    const auto ceiling_us = ceilings.read_us(row.row.bytes);
    table += fmt::format("{:<10}{:>10.2f}{:>12}{:>9}{:>9}{:>15}{}\n", n, row.row.us,
                         ceiling_us ? fmt::format("{:.2f}", *ceiling_us) : "-",
                         ceiling_us ? ratio(*ceiling_us / row.row.us) : "-", ratio(row.of_line),
                         ratio(row.of_neighbours), mark(row));
  }
  if (growth.line.us_per_byte > 0) {
    table += fmt::format("the line: {:.2f} us + bytes at {:.3g} TB/s\n", growth.line.fixed_us,
                         1e-6 / growth.line.us_per_byte);
  }
  return table;
}

nlohmann::ordered_json growth_json(const Growth& growth, const Ceilings& ceilings) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const GrowthRow& row : growth.rows) {
    nlohmann::ordered_json& entry = rows.emplace_back(row_json(row.row, ceilings));
    entry["batch"] = row.batch;
    entry["kv_len"] = row.kv_len;
    if (!row.row.not_run.empty()) continue;
    if (const auto us = ceilings.read_us(row.row.bytes)) entry["ceiling_us"] = rounded(*us, 2);
    if (row.of_line > 0) entry["of_line"] = rounded(row.of_line, 3);
    if (row.of_neighbours > 0) entry["of_neighbours"] = rounded(row.of_neighbours, 3);
    entry["above_line"] = row.of_line > kStandsOut;
    entry["is_step"] = row.of_neighbours > kStandsOut;
  }
  nlohmann::ordered_json root{{"over", growth.over}};
  if (growth.line.us_per_byte > 0) {
    root["line"] = {{"fixed_us", rounded(growth.line.fixed_us, 3)},
                    {"TBps", rounded(1e-6 / growth.line.us_per_byte, 6)}};
  }
  root["rows"] = rows;
  return root;
}

}  // namespace heddle::tools
