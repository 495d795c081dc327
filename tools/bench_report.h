// What `bench` found, as a table, as JSON in the form in which the peers are measured too, and
// beside the peers' figures.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace heddle::tools {

// The machine's own limits, measured in the same run. Empty: not measured, and why.
struct Ceilings {
  std::optional<double> read_tbps, matmul_tflops;
  std::string why_no_read, why_no_matmul;
  std::optional<double> read_us(double bytes) const;  // the time of reading that much
};

struct BenchRow {
  std::string workload;
  bool batch_invariant = false;
  std::string not_run;  // why; the rest is then empty
  double us = 0;        // one run(), median
  double bytes = 0;     // that it must read and write
  double tbps = 0, tflops = 0;
  double err = 0;       // largest error on the sampled rows
  double plan_us = 0;   // host time of one plan()
  double first_s = 0;   // making the Attention: compiling, or finding in the cache
  std::string plain;    // the row of plain softmax over the same shape, where there is one, and
  double of_plain = 0;  // the ratio of their TB/s
  // The row that this one is held against, and the ratios of this row's time and work to its. Work: bytes
  // of a decode, else FLOPs.
  std::string beside;
  double beside_us = 0, beside_plan_us = 0;
  double of_time = 0, of_work = 0;
};

struct PeerTime {
  std::string peer;
  double us = 0;
};
using BestPeers = std::map<std::string, PeerTime>;  // by workload

// The fastest peer of each workload in what a run over the peers wrote (the form of bench_json).
// Rows without a time, or with an error, count for nothing; neither do heddle's own. `file` is
// for messages.
BestPeers best_peers(std::string_view json, const std::string& file);

// `best`: adds the best peer and the ratio to it, above 1 where heddle is faster. Null: no run
// over peers was given.
nlohmann::ordered_json bench_json(const std::string& device, const Ceilings& ceilings,
                                  const std::vector<BenchRow>& rows,
                                  const BestPeers* best = nullptr);

nlohmann::ordered_json row_json(const BenchRow& row, const Ceilings& ceilings,
                                const BestPeers* best = nullptr);
double rounded(double value, int digits);

// What is left of the bandwidth of plain softmax. Empty where no row has a plain one.
std::string plain_table(const std::vector<BenchRow>& rows);
// The rows that are held against others. Empty where there is none.
std::string beside_table(const std::vector<BenchRow>& rows);

std::string ceilings_line(const Ceilings& ceilings);
// The table's head, and one line of it.
std::string bench_head(const BestPeers* best);
std::string bench_line(const BenchRow& row, const Ceilings& ceilings, const BestPeers* best);

}  // namespace heddle::tools
