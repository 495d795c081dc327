// The soak itself, on the CPU device: what it draws is valid, and what it finds is true.
#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/soak.h"

using namespace heddle_tests;

TEST_CASE("soak: a moment on the CPU device", "[engine][soak]") {
  const SoakReport report =
      soak({.engine = {.device = heddle::DeviceKind::cpu, .cache_dir = test_cache_dir()},
            .seconds = 2,
            .least_checks = 1,
            .check_every = 1});
  for (const Found& found : report.wrong) UNSCOPED_INFO(found);
  CHECK(report.wrong.empty());
  CHECK(report.counts.checks > 0);
}
