// plan() never allocates: this file replaces operator new for the whole test executable.
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

namespace {
std::atomic<long> allocations = 0;

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* p = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t a) { return counted(size, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t size, std::align_val_t a) { return counted(size, static_cast<std::size_t>(a)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace heddle_tests;

TEST_CASE("plan allocates nothing, not even the first time", "[planner]") {
  const std::vector<std::int32_t> kv = parse_lengths("uniform:200:1:9000");
  std::vector<std::int32_t> qo(kv.size(), 1);
  for (std::size_t r = 0; r < qo.size(); r += 7) qo[r] = 300;
  const OwnedBatch large(qo, kv, 16), small({1}, {77}, 16), none({}, {}, 16);
  for (const bool batch_invariant : {false, true}) {
    PlanConfig config = named_config();
    config.batch_invariant = batch_invariant;
    Planner planner(config, maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);

    const long before = allocations;
    CHECK(before > 0);
    for (const OwnedBatch* batch : {&large, &small, &none, &large}) {
      planner.plan(batch->view(), {.causal = 1}, bytes.span());
    }
    const long after = allocations;
    CHECK(after == before);
  }
}
