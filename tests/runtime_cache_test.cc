// Levels, keys, failures and upkeep of the kernel cache, with a compiler that only counts.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "runtime/hash.h"
#include "tests/catch.h"
#include "tests/patience.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;
using Origin = KernelCache::Origin;

TEST_CASE("cache: compiled once, then from memory, then from disk", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  const CompileRequest request = request_of("unit");
  KernelCache cache({.dir = dir.path()});
  const auto first = cache.get(compiler, request), second = cache.get(compiler, request);
  CHECK(first.origin == Origin::compiled);
  CHECK(second.origin == Origin::memory);
  CHECK(second.artifact == first.artifact);
  KernelCache later({.dir = dir.path()});
  const auto third = later.get(compiler, request);
  CHECK(third.origin == Origin::disk);
  CHECK(third.key == first.key);
  CHECK(compiler.compiles == 1);
  const Artifact &a = *first.artifact, &b = *third.artifact;
  CHECK(b.image == a.image);
  CHECK(b.log == "a note");
  CHECK(b.compile_ms == 12.5);
  CHECK(b.registers == 40);
  CHECK(b.shared_bytes == 256);
  CHECK(b.spill_bytes == 8);
  CHECK(b.stack_bytes == 16);
}

TEST_CASE("cache: counters tell the levels apart", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  for (int i = 0; i < 3; ++i) cache.get(compiler, request_of("unit"));
  cache.get(compiler, request_of("other"));
  CHECK(cache.counters().compiles == 2);
  CHECK(cache.counters().memory_hits == 2);
  CHECK(cache.counters().disk_hits == 0);
  KernelCache later({.dir = dir.path()});
  later.get(compiler, request_of("other"));
  CHECK(later.counters().disk_hits == 1);
  CHECK(later.counters().write_failures == 0);
}

TEST_CASE("cache: every input of a compile is in the key, names are not", "[cache]") {
  const FakeCompiler compiler, newer("fake 2");
  const CompileRequest request = request_of("unit");
  const std::string key = KernelCache::key_of(compiler, request);
  const auto differs = [&](auto change) {
    CompileRequest changed = request;
    change(changed);
    return KernelCache::key_of(compiler, changed) != key;
  };
  CHECK(KernelCache::key_of(newer, request) != key);
  CHECK(differs([](CompileRequest& r) { r.unit = "unit "; }));
  CHECK(differs([](CompileRequest& r) { r.arch = "sm_90"; }));
  CHECK(differs([](CompileRequest& r) { r.entry = "attention2"; }));
  CHECK(differs([](CompileRequest& r) { r.headers_digest = "other headers"; }));
  CHECK_FALSE(differs([](CompileRequest& r) { r.name = "another name"; }));
  CHECK_FALSE(differs([](CompileRequest& r) { r.unit_path = "other.cu"; }));
}

TEST_CASE("cache: without a digest the headers themselves are hashed", "[cache]") {
  const FakeCompiler compiler;
  const SourceFile one[] = {{"a.h", "1"}}, two[] = {{"a.h", "2"}};
  CompileRequest request = request_of("unit");
  request.headers_digest.clear();
  request.headers = one;
  const std::string key = KernelCache::key_of(compiler, request);
  request.headers = two;
  CHECK(KernelCache::key_of(compiler, request) != key);
  request.headers = one;
  request.headers_digest = digest_of(one);
  CHECK(KernelCache::key_of(compiler, request) == key);
}

TEST_CASE("cache: the key of a fixed request is a fixed number", "[cache]") {
  const FakeCompiler compiler;
  CHECK(KernelCache::key_of(compiler, request_of("unit")) == "e9139faff47ac465ad4f4c9d19291689");
}

TEST_CASE("cache: a refused unit is compiled once and fails each time", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  for (int i = 0; i < 3; ++i) {
    try {
      cache.get(compiler, request_of("bad"));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::compile_failed);
      CHECK(std::string(error.what()).find("spec.json:/hooks/k(1): error: bad is not good") == 0);
    }
  }
  CHECK(compiler.compiles == 1);
  CHECK(cache.list().empty());
  KernelCache later({.dir = dir.path()});
  CHECK_THROWS_AS(later.get(compiler, request_of("bad")), Error);
  CHECK(compiler.compiles == 2);
}

TEST_CASE("cache: a failure that may pass is tried again", "[cache]") {
  FakeCompiler compiler;
  KernelCache cache({.disk = false});
  CHECK_THROWS_AS(cache.get(compiler, request_of("unlucky")), Error);
  CHECK_THROWS_AS(cache.get(compiler, request_of("unlucky")), Error);
  CHECK(compiler.compiles == 2);
}

TEST_CASE("cache: forget drops an image from memory and disk", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  const auto first = cache.get(compiler, request_of("unit"));
  cache.forget(first.key);
  CHECK_FALSE(std::filesystem::exists(entry_path(dir.path(), first.key)));
  CHECK(cache.get(compiler, request_of("unit")).origin == Origin::compiled);
  CHECK(first.artifact->image == "image of unit");  // who held it still does
  cache.forget("not a key");
}

TEST_CASE("cache: list and clear", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  for (const char* unit : {"a", "b", "c"}) cache.get(compiler, request_of(unit));
  const std::vector<CacheEntry> entries = cache.list();
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].name == "a test");
  CHECK(entries[0].arch == "sm_90a");
  CHECK(entries[0].registers == 40);
  CHECK(entries[0].compile_ms == 12.5);
  CHECK(entries[0].bytes == std::filesystem::file_size(entry_path(dir.path(), entries[0].key)));
  CHECK(entries[0].used_at > 0);
  CHECK(cache.clear() == 3);
  CHECK(cache.list().empty());
  CHECK(cache.get(compiler, request_of("a")).origin == Origin::compiled);
}

TEST_CASE("cache: the least recently used entries go when the cap is passed", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  compiler.image_bytes = 10'000;
  KernelCache cache({.dir = dir.path(), .max_bytes = 60'000});
  std::vector<std::string> keys;
  for (int i = 0; i < 12; ++i) {
    keys.push_back(cache.get(compiler, request_of("unit " + std::to_string(i))).key);
    // Ages by hand, in the order of making: file systems may count time coarsely.
    timespec times[2] = {{1'000'000 + i, 0}, {1'000'000 + i, 0}};
    utimensat(AT_FDCWD, entry_path(dir.path(), keys.back()).c_str(), times, 0);
  }
  std::uint64_t total = 0;
  for (const CacheEntry& entry : cache.list()) total += entry.bytes;
  CHECK(total <= 60'000 + 11'000);  // the last write may stand over until the next
  CHECK(cache.counters().evicted >= 6);
  CHECK(std::filesystem::exists(entry_path(dir.path(), keys.back())));
  CHECK_FALSE(std::filesystem::exists(entry_path(dir.path(), keys.front())));
}

TEST_CASE("cache: a hit makes an old entry young", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  const std::string key = KernelCache({.dir = dir.path()}).get(compiler, request_of("unit")).key;
  timespec times[2] = {{1'000'000, 0}, {1'000'000, 0}};
  utimensat(AT_FDCWD, entry_path(dir.path(), key).c_str(), times, 0);
  KernelCache later({.dir = dir.path()});
  later.get(compiler, request_of("unit"));
  CHECK(later.list().at(0).used_at > 1'000'000);
}

TEST_CASE("cache: temporary files of the dead are swept after an hour", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  const std::string old_file = dir.path() + "/tmp/1-old", new_file = dir.path() + "/tmp/1-new";
  write_file(old_file, "x");
  write_file(new_file, "x");
  timespec times[2] = {{1'000'000, 0}, {1'000'000, 0}};
  utimensat(AT_FDCWD, old_file.c_str(), times, 0);
  cache.get(compiler, request_of("unit"));
  CHECK_FALSE(std::filesystem::exists(old_file));
  CHECK(std::filesystem::exists(new_file));
}

TEST_CASE("cache: a hit on the disk costs less than a millisecond", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  compiler.image_bytes = 73'000;
  const CompileRequest request = request_of(std::string(6000, 'u'));
  KernelCache({.dir = dir.path()}).get(compiler, request);
  double best_us = 1e9;
  for (int round = 0; round < 50; ++round) {
    KernelCache cache({.dir = dir.path()});
    const auto begin = std::chrono::steady_clock::now();
    cache.get(compiler, request);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    best_us = std::min(best_us, took.count());
  }
  INFO("best of 50: " << best_us << " us");
  CHECK(best_us < 1000 * patience());
  CHECK(compiler.compiles == 1);
}

TEST_CASE("cache: a hit in memory costs about a microsecond at most", "[cache]") {
  FakeCompiler compiler;
  KernelCache cache({.disk = false});
  const CompileRequest request = request_of(std::string(6000, 'u'));
  cache.get(compiler, request);
  double best_us = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) cache.get(compiler, request);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    best_us = std::min(best_us, took.count() / 1000);
  }
  INFO("best of 20: " << best_us << " us");
  CHECK(best_us < 2 * patience());  // 0.35 in a release build; room for busy machines
}
