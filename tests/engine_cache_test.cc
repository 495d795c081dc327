// A user's variant on the CPU device is compiled once: later engines and other threads find it, and
// an entry that was damaged costs a compile.
#include <latch>
#include <thread>

#include "runtime/host_compiler.h"
#include "tests/catch.h"
#include "tests/engine_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

namespace fs = std::filesystem;

// Before any test: nothing of this executable may land in the user's cache.
[[maybe_unused]] const std::string& private_cache = test_cache_dir();

bool has_compiler() {
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was compiled: " << *why);
    return false;
  }
  return true;
}

constexpr const char* kSpec =
    R"({"name": "halved", "hooks": {"logits_transform": "return logit / 2;"}})";

std::string origin_in(const std::string& dir) {
  Engine engine({.device = DeviceKind::cpu, .cache_dir = dir});
  add_spec(engine, kSpec);
  Attention attention =
      engine.attention({.variant = "halved", .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64});
  VariantStep step(engine, attention, {{1, 20}, {70, 33}});
  CHECK(step.run(attention).ok());
  return attention.kernels().at(0).origin;
}

std::vector<fs::path> entries_of(const std::string& dir) {
  std::vector<fs::path> entries;
  for (const auto& at : fs::recursive_directory_iterator(dir + "/v1"))
    if (at.is_regular_file() && at.path().filename().string().size() == 32)
      entries.push_back(at.path());
  return entries;
}

}  // namespace

TEST_CASE("a second engine finds the first one's host unit on disk", "[engine][cache]") {
  if (!has_compiler()) return;
  const TempDir dir;
  CHECK(origin_in(dir.path()) == "compiled");
  CHECK(entries_of(dir.path()).size() == 1);
  CHECK(origin_in(dir.path()) == "disk");
}

TEST_CASE("a second Attention of one engine finds its unit in memory", "[engine][cache]") {
  if (!has_compiler()) return;
  const TempDir dir;
  Engine engine({.device = DeviceKind::cpu, .cache_dir = dir.path()});
  add_spec(engine, kSpec);
  const AttentionConfig config{
      .variant = "halved", .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  CHECK(engine.attention(config).kernels().at(0).origin == "compiled");
  CHECK(engine.attention(config).kernels().at(0).origin == "memory");
}

TEST_CASE("a damaged entry is compiled again and replaced", "[engine][cache]") {
  if (!has_compiler()) return;
  const TempDir dir;
  CHECK(origin_in(dir.path()) == "compiled");
  REQUIRE(entries_of(dir.path()).size() == 1);
  const std::string entry = entries_of(dir.path())[0].string();
  std::string bytes = read_file(entry);
  bytes[bytes.size() / 2] ^= 1;
  write_file(entry, bytes);
  CHECK(origin_in(dir.path()) == "compiled");
  write_file(entry, bytes.substr(0, 100));
  CHECK(origin_in(dir.path()) == "compiled");
  CHECK(origin_in(dir.path()) == "disk");
}

TEST_CASE("two engines in two threads compile a user's variant once", "[engine][cache]") {
  if (!has_compiler()) return;
  const TempDir dir;
  std::latch start(2);
  std::string origins[2];
  {
    std::vector<std::jthread> threads;
    for (std::string& origin : origins)
      threads.emplace_back([&] {
        start.arrive_and_wait();
        Engine engine({.device = DeviceKind::cpu, .cache_dir = dir.path()});
        add_spec(engine, kSpec);
        origin =
            engine
                .attention(
                    {.variant = "halved", .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64})
                .kernels()
                .at(0)
                .origin;
      });
  }
  CHECK(std::count(std::begin(origins), std::end(origins), "compiled") == 1);
  CHECK(std::count(std::begin(origins), std::end(origins), "disk") == 1);
}

TEST_CASE("a cache folder that cannot be made costs a compile, not an error", "[engine][cache]") {
  if (!has_compiler()) return;
  CHECK(origin_in("/proc/no/such/folder") == "compiled");
  CHECK(origin_in("/proc/no/such/folder") == "compiled");
}

TEST_CASE("a built-in variant needs no compiler", "[engine][cache]") {
  const Environment no_compiler("HEDDLE_CXX", "/no/such/compiler");
  Engine engine = cpu_engine();
  for (const std::string& name : engine.variants().names()) {
    Attention attention =
        engine.attention({.variant = name, .num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64});
    CHECK(attention.kernels().at(0).origin == "built in");
  }
}
