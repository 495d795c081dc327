// batch_invariant on the CPU device: fixed requests in 560 random batches.
#include "tests/catch.h"
#include "tests/invariance.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("batch_invariant: a request's bits are the same in every batch", "[engine][invariant]") {
  constexpr int kBatches = 40;
  Engine engine({.device = DeviceKind::cpu});
  InvarianceTally tally;
  const std::vector<Probe> all = probes(1);
  tools::parallel_for(int(all.size()), [&](int i) {
    const Company company{.requests = 9, .qo_len = 20, .kv_len = 700};
    try_probe(engine, all[std::size_t(i)], company, kBatches, std::uint64_t(i), tally);
  });
  for (const std::string& what : tally.wrong) UNSCOPED_INFO(what);
  CHECK(tally.wrong.empty());
  CHECK(tally.batches >= 500);
  CHECK(tally.same == tally.batches);
}

// Else the test above would test nothing: the default does cut elsewhere in another batch.
TEST_CASE("without batch_invariant the bits may differ", "[engine][invariant]") {
  Engine engine({.device = DeviceKind::cpu});
  const Probe probe{{.variant = "softmax", .num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 128}, 1, 3000};
  InvarianceTally tally;
  try_probe(engine, probe, {.requests = 9, .qo_len = 20, .kv_len = 700}, 10, 1, tally, false);
  CHECK(tally.same < tally.batches);
}
