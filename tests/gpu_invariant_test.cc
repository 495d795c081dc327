// batch_invariant on the GPU: fixed requests in random batches, as on the CPU device.
#include <fmt/format.h>

#include "tests/catch.h"
#include "tests/invariance.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("batch_invariant: a request's bits are the same in every batch, on the GPU", "[gpu][invariant]") {
  constexpr int kBatches = 40;
  Engine engine;
  InvarianceTally tally;
  std::uint64_t seed = 0;
  for (const Probe& probe : probes(3)) {
    const Company company{.requests = 40, .qo_len = 60, .kv_len = 6000};
    try_probe(engine, probe, company, kBatches, ++seed, tally);
  }
  fmt::print("batch_invariant: {} of {} batches gave the bits of the first\n", tally.same, tally.batches);
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.wrong.empty());
  CHECK(tally.batches >= 500);
  CHECK(tally.same == tally.batches);
}
