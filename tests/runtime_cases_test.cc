// Public bug reports about kernel caches and compilers; tests/cases.json says where each comes
// from.
#include <sys/stat.h>

#include "runtime/host_compiler.h"
#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

namespace fs = std::filesystem;
using Origin = KernelCache::Origin;

// What a process that starts now gets for `unit`.
Origin origin_in(const std::string& dir, const std::string& unit,
                 const std::string& identity = "fake 1") {
  FakeCompiler compiler(identity);
  return KernelCache({.dir = dir}).get(compiler, request_of(unit)).origin;
}

std::vector<fs::path> files_under(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& at : fs::recursive_directory_iterator(dir))
    if (at.is_regular_file()) files.push_back(at.path());
  return files;
}

}  // namespace

TEST_CASE("B143 processes that compile different keys in one cold folder do not meet",
          "[cache][cases]") {
  const TempDir dir;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(start_child([&, i] {
      for (int unit = 0; unit < 20; ++unit)
        if (origin_in(dir.path(), "unit " + std::to_string(i) + " " + std::to_string(unit)) !=
            Origin::compiled)
          return 1;
      return 0;
    }));
  }
  for (const pid_t child : children) CHECK(end_of(child) == 0);
  CHECK(KernelCache({.dir = dir.path()}).list().size() == 160);
}

TEST_CASE("B145 times of files decide nothing: other bytes are another key", "[cache][cases]") {
  const TempDir dir;
  CHECK(origin_in(dir.path(), "unit") == Origin::compiled);
  for (const fs::path& file : files_under(dir.path() + "/v1"))
    fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(24 * 365));
  CHECK(origin_in(dir.path(), "unit, edited") == Origin::compiled);
  for (const fs::path& file : files_under(dir.path() + "/v1"))
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(24 * 365 * 20));
  CHECK(origin_in(dir.path(), "unit") == Origin::disk);
  CHECK(origin_in(dir.path(), "unit, edited") == Origin::disk);
}

TEST_CASE("B146 two versions of a compiler share a folder and no entry", "[cache][cases]") {
  const TempDir dir;
  CHECK(origin_in(dir.path(), "unit", "fake 1") == Origin::compiled);
  CHECK(origin_in(dir.path(), "unit", "fake 2") == Origin::compiled);
  CHECK(origin_in(dir.path(), "unit", "fake 1") == Origin::disk);
  CHECK(origin_in(dir.path(), "unit", "fake 2") == Origin::disk);
}

TEST_CASE("B148 lock files are never deleted, and a stored entry needs none", "[cache][cases]") {
  const TempDir dir;
  origin_in(dir.path(), "unit");
  const std::vector<fs::path> locks = files_under(dir.path() + "/locks");
  REQUIRE_FALSE(locks.empty());
  struct stat before {
  }, after{};
  REQUIRE(stat(locks[0].c_str(), &before) == 0);
  FakeCompiler compiler;
  KernelCache cache({.dir = dir.path()});
  cache.get(compiler, request_of("unit"));
  cache.clear();
  origin_in(dir.path(), "unit");
  REQUIRE(stat(locks[0].c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
  // Somebody holds every lock for good: what is stored is served all the same.
  const pid_t holder = start_child([&] {
    FakeCompiler slow;
    slow.pause_ms = 60'000;
    KernelCache({.dir = dir.path()}).get(slow, request_of("unit that takes long"));
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(origin_in(dir.path(), "unit") == Origin::disk);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  kill(holder, SIGKILL);
  end_of(holder);
}

TEST_CASE("B151 a file of no bytes in an entry's place is compiled over", "[cache][cases]") {
  const TempDir dir;
  FakeCompiler compiler;
  const std::string key = KernelCache({.dir = dir.path()}).get(compiler, request_of("unit")).key;
  for (const std::size_t bytes : {0u, 1u, 79u, 80u, 100u}) {
    const std::string path = entry_path(dir.path(), key), whole = read_file(path);
    write_file(path, whole.substr(0, bytes));
    CHECK(origin_in(dir.path(), "unit") == Origin::compiled);
    CHECK(read_file(path).size() == whole.size());
  }
}

TEST_CASE("B152 two architectures, or two sets of options, never share a key", "[cache][cases]") {
  const FakeCompiler plain("fake -O2"), other("fake -O3");
  CompileRequest request = request_of("unit");
  const std::string key = KernelCache::key_of(plain, request);
  CHECK(KernelCache::key_of(other, request) != key);
  request.arch = "sm_90";
  CHECK(KernelCache::key_of(plain, request) != key);
  request.arch = "sm_90a";
  CHECK(KernelCache::key_of(plain, request) == key);
}

TEST_CASE("B163 a compiler under a path with spaces and quotes", "[host][cases]") {
  if (const auto why = HostCompiler::unavailable()) {
    WARN("Nothing was tried: " << *why);
    return;
  }
  const TempDir dir;
  const std::string folder = dir.path() + "/a folder, 'quoted' \"twice\" $HOME";
  fs::create_directories(folder);
  const std::string compiler_path = folder + "/the compiler";
  write_file(compiler_path, "#!/bin/sh\nexec c++ \"$@\"\n");
  fs::permissions(compiler_path, fs::perms::owner_all);
  const Environment chosen("HEDDLE_CXX", compiler_path.c_str());
  const Environment temporary("TMPDIR", folder.c_str());
  HostCompiler compiler;
  CompileRequest request = request_of("extern \"C\" int attention() { return 7; }");
  request.arch = "cpu";
  CHECK(compiler.compile(request).image.size() > 100);
}
