// Not run unless asked for: heddle_gpu_tests "[soak]". HEDDLE_SOAK_SECONDS, HEDDLE_SOAK_SEED and
// HEDDLE_SOAK_DEVICE (a CUDA ordinal) set how long, which and where.
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/soak.h"

using namespace heddle_tests;

namespace {

double number_from(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : otherwise;
}

}  // namespace

TEST_CASE("soak: batches, graphs, streams and Attentions that come and go leave nothing behind",
          "[.gpu][soak]") {
  const SoakReport report =
      soak({.engine = {.device = heddle::DeviceKind::cuda,
                       .ordinal = int(number_from("HEDDLE_SOAK_DEVICE", 0))},
            .seconds = number_from("HEDDLE_SOAK_SECONDS", 480),
            .seed = std::uint64_t(number_from("HEDDLE_SOAK_SEED", 1)),
            .say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); }});
  fmt::print("soak: {}\n", report.summary());
  std::fflush(stdout);
  for (const Found& found : report.wrong) UNSCOPED_INFO(found);
  CHECK(report.wrong.empty());
  CHECK(report.counts.checks > 0);
  const std::vector<Found> growth = report.growth();
  for (const Found& found : growth) UNSCOPED_INFO(found);
  CHECK(growth.empty());
}
