// Damaged, foreign and half-written entries are misses, never errors.
#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;
using Origin = KernelCache::Origin;

namespace {

// One stored entry, its file and its bytes.
struct StoredEntry {
  StoredEntry() {
    KernelCache cache({.dir = dir.path()});
    path = entry_path(dir.path(), cache.get(compiler, request).key);
    bytes = read_file(path);
  }

  Origin origin_after(const std::string& new_bytes) {
    write_file(path, new_bytes);
    KernelCache cache({.dir = dir.path()});
    const auto result = cache.get(compiler, request);
    is_right = result.artifact->image == "image of unit";
    damaged = cache.counters().damaged;
    return result.origin;
  }

  TempDir dir;
  FakeCompiler compiler;
  CompileRequest request = request_of("unit");
  std::string path, bytes;
  bool is_right = false;
  std::uint64_t damaged = 0;
};

}  // namespace

TEST_CASE("cache damage: an entry cut off anywhere is a miss and is replaced", "[cache]") {
  StoredEntry entry;
  REQUIRE(entry.bytes.size() > 100);
  for (std::size_t size = 0; size < entry.bytes.size(); ++size) {
    INFO("cut to " << size << " of " << entry.bytes.size());
    const bool is_miss = entry.origin_after(entry.bytes.substr(0, size)) == Origin::compiled;
    REQUIRE((is_miss && entry.is_right && entry.damaged == 1));
    REQUIRE(read_file(entry.path) == entry.bytes);
  }
}

TEST_CASE("cache damage: a flipped bit anywhere is a miss", "[cache]") {
  StoredEntry entry;
  for (std::size_t at = 0; at < entry.bytes.size(); ++at) {
    INFO("byte " << at << " of " << entry.bytes.size());
    std::string flipped = entry.bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    const bool is_miss = entry.origin_after(flipped) == Origin::compiled;
    REQUIRE((is_miss && entry.is_right && entry.damaged == 1));
  }
}

TEST_CASE("cache damage: trailing bytes, foreign files and nothing at all are misses", "[cache]") {
  StoredEntry entry;
  for (const std::string& bytes :
       {entry.bytes + "x", std::string("#!/bin/sh\n"), std::string(5000, '\0'),
        std::string(5000, '\xff'), std::string()}) {
    CHECK(entry.origin_after(bytes) == Origin::compiled);
    CHECK(entry.is_right);
  }
  CHECK(entry.origin_after(entry.bytes) == Origin::disk);
}

TEST_CASE("cache damage: a sound entry of another key is a miss", "[cache]") {
  StoredEntry entry;
  KernelCache cache({.dir = entry.dir.path()});
  const std::string other = cache.get(entry.compiler, request_of("other")).key;
  CHECK(entry.origin_after(read_file(entry_path(entry.dir.path(), other))) == Origin::compiled);
  CHECK(entry.is_right);
}

TEST_CASE("cache damage: links and folders in an entry's place are not followed", "[cache]") {
  StoredEntry entry;
  const std::string elsewhere = entry.dir.path() + "/elsewhere";
  write_file(elsewhere, entry.bytes);
  std::filesystem::remove(entry.path);
  std::filesystem::create_symlink(elsewhere, entry.path);
  KernelCache cache({.dir = entry.dir.path()});
  CHECK(cache.get(entry.compiler, entry.request).origin == Origin::compiled);
  CHECK(read_file(elsewhere) == entry.bytes);
  std::filesystem::remove(entry.path);
  std::filesystem::create_directory(entry.path);
  KernelCache again({.dir = entry.dir.path()});
  CHECK(again.get(entry.compiler, entry.request).artifact->image == "image of unit");
}

TEST_CASE("cache damage: a file full of other things does not stop list or clear", "[cache]") {
  StoredEntry entry;
  write_file(std::filesystem::path(entry.path).parent_path().string() + "/notes.txt", "mine");
  write_file(entry_path(entry.dir.path(),
                        entry.path.substr(entry.path.size() - 32, 2) + std::string(30, '0')),
             "junk");
  KernelCache cache({.dir = entry.dir.path()});
  CHECK(cache.list().size() == 1);
  CHECK(cache.clear() == 2);
  CHECK(read_file(std::filesystem::path(entry.path).parent_path().string() + "/notes.txt") ==
        "mine");
}
