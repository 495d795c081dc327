// What `bench` found, as a table, as JSON in the form in which the peers are measured too, and
// beside the peers' figures.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace heddle::tools {

// The machine's own limits, measured in the same run. Empty: not measured, and why.
struct Ceilings {
  std::optional<double> read_tbps, matmul_tflops;
  std::string why_no_read, why_no_matmul;
};

struct BenchRow {
  std::string workload;
  std::string not_run;  // why; the rest is then empty
  double us = 0;        // one run(), median
  double tbps = 0, tflops = 0;
  double err = 0;      // largest error on the sampled rows
  double plan_us = 0;  // host time of one plan()
  double first_s = 0;  // making the Attention: compiling, or finding in the cache
};

struct PeerTime {
  std::string peer;
  double us = 0;
};

// The fastest peer of each workload in a file of the same form.
std::map<std::string, PeerTime> read_best_peers(const std::string& path);

nlohmann::ordered_json bench_json(const std::string& device, const Ceilings& ceilings,
                                  const std::vector<BenchRow>& rows);

std::string ceilings_line(const Ceilings& ceilings);
// The table's head, and one line of it; `best` may be null, `beside` says whether there is such a
// column at all.
std::string bench_head(bool beside);
std::string bench_line(const BenchRow& row, const Ceilings& ceilings, bool beside,
                       const PeerTime* best);

}  // namespace heddle::tools
