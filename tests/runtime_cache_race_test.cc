// One compile per key, whoever asks: threads, processes, and processes that die.
#include <csignal>

#include "tests/catch.h"
#include "tests/patience.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;
using Origin = KernelCache::Origin;

TEST_CASE("cache race: 16 threads compile a key once", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  compiler.pause_ms = 50;
  KernelCache cache({.dir = dir.path()});
  std::vector<std::jthread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      right += cache.get(compiler, request_of("unit")).artifact->image == "image of unit";
    });
  }
  threads.clear();
  CHECK(right == 16);
  CHECK(compiler.compiles == 1);
  CHECK(cache.counters().compiles == 1);
}

TEST_CASE("cache race: 16 threads see the same failure after one compile", "[cache]") {
  FakeCompiler compiler;
  compiler.pause_ms = 50;
  KernelCache cache({.disk = false});
  std::atomic<int> failures = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      try {
        cache.get(compiler, request_of("bad"));
      } catch (const Error&) {
        ++failures;
      }
    });
  }
  threads.clear();
  CHECK(failures == 16);
  CHECK(compiler.compiles == 1);
}

TEST_CASE("cache race: different keys compile at the same time", "[cache]") {
  FakeCompiler compiler;
  compiler.pause_ms = 100;
  KernelCache cache({.disk = false});
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { cache.get(compiler, request_of("unit " + std::to_string(i))); });
  }
  threads.clear();
  CHECK(std::chrono::steady_clock::now() - begin < patience() * std::chrono::milliseconds(600));
}

TEST_CASE("cache race: 16 processes compile a key once", "[cache]") {
  const TempDir dir;
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(start_child([&] {
      FakeCompiler compiler;
      compiler.pause_ms = 200;
      compiler.tally = dir.path() + "/tally";
      KernelCache cache({.dir = dir.path() + "/cache"});
      return cache.get(compiler, request_of("unit")).artifact->image == "image of unit" ? 0 : 1;
    }));
  }
  for (const pid_t child : children) CHECK(end_of(child) == 0);
  CHECK(count_lines(dir.path() + "/tally") == 1);
}

TEST_CASE("cache race: a process killed while compiling leaves the key free", "[cache]") {
  const TempDir dir;
  const pid_t child = start_child([&] {
    FakeCompiler compiler;
    compiler.pause_ms = 60'000;
    KernelCache({.dir = dir.path()}).get(compiler, request_of("unit"));
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  kill(child, SIGKILL);
  CHECK(end_of(child) == 128 + SIGKILL);
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  const auto begin = std::chrono::steady_clock::now();
  CHECK(cache.get(compiler, request_of("unit")).origin == Origin::compiled);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("cache race: patience with another process has an end", "[cache]") {
  const TempDir dir;
  const pid_t child = start_child([&] {
    FakeCompiler compiler;
    compiler.pause_ms = 60'000;
    KernelCache({.dir = dir.path()}).get(compiler, request_of("unit"));
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path(), .max_wait_s = 0.2});
  CHECK(cache.get(compiler, request_of("unit")).origin == Origin::compiled);
  CHECK(cache.counters().waits == 1);
  kill(child, SIGKILL);
  end_of(child);
}

TEST_CASE("cache race: kill -9 while publishing leaves a good cache", "[cache]") {
  const TempDir dir;
  constexpr int kUnits = 8;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = start_child([&] {
      FakeCompiler compiler;
      compiler.image_bytes = 1 << 20;  // writing takes a while
      for (int i = 0;; ++i) {
        KernelCache cache({.dir = dir.path()});
        const std::string key =
            cache.get(compiler, request_of("unit " + std::to_string(i % kUnits))).key;
        if (i % 3 == 0) cache.forget(key);
      }
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 7 * round));
    kill(child, SIGKILL);
    CHECK(end_of(child) == 128 + SIGKILL);
    FakeCompiler compiler;
    compiler.image_bytes = 1 << 20;
    KernelCache cache({.dir = dir.path()});
    for (int i = 0; i < kUnits; ++i) {
      const std::string unit = "unit " + std::to_string(i);
      CHECK(cache.get(compiler, request_of(unit)).artifact->image ==
            "image of " + unit + std::string(1 << 20, '\1'));
    }
    CHECK(cache.counters().damaged == 0);
  }
}
