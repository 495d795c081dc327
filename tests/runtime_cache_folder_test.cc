// The folder of the kernel cache: where it is, whom it belongs to, and what a bad one costs.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/catch.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;
using Origin = KernelCache::Origin;

TEST_CASE("cache: a folder that cannot be made costs nothing but the disk", "[cache]") {
  const TempDir dir;
  write_file(dir.path() + "/file", "in the way");
  FakeCompiler compiler;
  for (const std::string& bad :
       {dir.path() + "/file/cache", std::string("/proc/no/such"), dir.path() + "/file"}) {
    KernelCache cache({.dir = bad});
    CHECK(cache.get(compiler, request_of("unit")).origin == Origin::compiled);
    CHECK(cache.get(compiler, request_of("unit")).origin == Origin::memory);
    CHECK_THAT(cache.why_no_disk(), contains("in memory only"));
    CHECK(cache.directory().empty());
    CHECK(cache.list().empty());
    CHECK(cache.clear() == 0);
  }
}

TEST_CASE("cache: a folder whose parts cannot be written still answers", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  KernelCache({.dir = dir.path()}).get(compiler, request_of("unit"));
  // Even root cannot make files under a file.
  std::filesystem::remove_all(dir.path() + "/tmp");
  std::filesystem::remove_all(dir.path() + "/locks");
  write_file(dir.path() + "/tmp", "");
  write_file(dir.path() + "/locks", "");
  KernelCache cache({.dir = dir.path()});
  CHECK(cache.get(compiler, request_of("unit")).origin == Origin::disk);
  CHECK(cache.why_no_disk().empty());
  CHECK(cache.get(compiler, request_of("new")).origin == Origin::compiled);
  CHECK(cache.counters().write_failures == 1);
  CHECK_THAT(cache.why_no_disk(), contains("New kernels are not stored"));
}

TEST_CASE("cache: a full disk costs only the entry", "[cache]") {
  const TempDir dir;
  // A limit on the size of files stands for a full disk: the write ends half-way with an error.
  CHECK(end_of(start_child([&] {
          signal(SIGXFSZ, SIG_IGN);
          rlimit old{};
          getrlimit(RLIMIT_FSIZE, &old);
          const rlimit limit{20'000, old.rlim_max};
          setrlimit(RLIMIT_FSIZE, &limit);
          FakeCompiler compiler;
          compiler.image_bytes = 100'000;
          KernelCache cache({.dir = dir.path()});
          const bool is_right =
              cache.get(compiler, request_of("unit")).artifact->image.size() > 100'000;
          const bool is_counted =
              cache.counters().write_failures == 1 && !cache.why_no_disk().empty();
          const bool is_clean =
              std::filesystem::is_empty(dir.path() + "/tmp") && cache.list().empty();
          setrlimit(RLIMIT_FSIZE, &old);
          return is_right && is_counted && is_clean ? 0 : 1;
        })) == 0);
}

TEST_CASE("cache: a folder that others may write is refused", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  for (const mode_t mode : {0770, 0707}) {
    const std::string open_dir = dir.path() + "/open";
    std::filesystem::create_directory(open_dir);
    chmod(open_dir.c_str(), mode);
    KernelCache cache({.dir = open_dir});
    CHECK(cache.get(compiler, request_of("unit")).origin == Origin::compiled);
    CHECK_THAT(cache.why_no_disk(), contains("chmod go-w"));
    CHECK(std::filesystem::is_empty(open_dir));
  }
}

TEST_CASE("cache: a folder that others may write is taken when asked for", "[cache]") {
  const TempDir dir;
  const mode_t old = umask(0007);
  FakeCompiler compiler;
  const Environment shared("HEDDLE_CACHE_SHARED", "1");
  const std::string folder = dir.path() + "/shared", open_dir = dir.path() + "/open";
  std::filesystem::create_directory(open_dir);
  chmod(open_dir.c_str(), 0777);
  CHECK(KernelCache({.dir = open_dir}).directory() == open_dir);
  // What is made there is for whom the umask lets in.
  const std::string key = KernelCache({.dir = folder}).get(compiler, request_of("unit")).key;
  for (const auto& [path, mode] :
       {std::pair{folder, 0770}, {folder + "/v1", 0770}, {entry_path(folder, key), 0660}}) {
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK(int(status.st_mode & 0777) == mode);
  }
  CHECK(KernelCache({.dir = folder}).get(compiler, request_of("unit")).origin == Origin::disk);
  umask(old);
}

TEST_CASE("cache: an entry that others may have written is a miss", "[cache]") {
  const TempDir dir;
  FakeCompiler compiler;
  const std::string path = entry_path(
      dir.path(), KernelCache({.dir = dir.path()}).get(compiler, request_of("unit")).key);
  const auto origin_after = [&](const std::function<int()>& change) {
    CHECK(change() == 0);
    return KernelCache({.dir = dir.path()}).get(compiler, request_of("unit")).origin;
  };
  CHECK(origin_after([&] { return chmod(path.c_str(), 0644); }) == Origin::disk);
  CHECK(origin_after([&] { return chmod(path.c_str(), 0602); }) == Origin::compiled);
  CHECK(origin_after([&] { return chmod(path.c_str(), 0620); }) == Origin::compiled);
  CHECK(origin_after([] { return 0; }) == Origin::disk);  // the one that replaced it
  if (geteuid() == 0) {
    CHECK(origin_after([&] { return chown(path.c_str(), 12345, 0); }) == Origin::compiled);
    CHECK(chown(dir.path().c_str(), 12345, 0) == 0);
    CHECK_THAT(KernelCache({.dir = dir.path()}).why_no_disk(), contains("belongs to another user"));
    CHECK(
        KernelCache({.dir = dir.path(), .shared = true}).get(compiler, request_of("unit")).origin ==
        Origin::disk);
  }
}

TEST_CASE("cache: a new folder is the user's alone", "[cache]") {
  const TempDir dir;
  const KernelCache cache({.dir = dir.path() + "/deep/er/cache"});
  struct stat status {};
  REQUIRE(stat(cache.directory().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("a temporary folder that cannot be made is a sentence that names it", "[cache]") {
  const Environment nowhere("TMPDIR", "/proc/no/such");
  CHECK_THROWS_WITH(TempDir(), contains("can be made in /proc/no/such") && contains("set TMPDIR"));
}

TEST_CASE("cache: where the folder comes from", "[cache]") {
  const TempDir dir;
  const Environment cache_dir("HEDDLE_CACHE_DIR", (dir.path() + "/a").c_str());
  const Environment xdg("XDG_CACHE_HOME", (dir.path() + "/b").c_str());
  const Environment home("HOME", (dir.path() + "/c").c_str());
  CHECK(KernelCache().directory() == dir.path() + "/a");
  const Environment no_cache_dir("HEDDLE_CACHE_DIR", nullptr);
  CHECK(KernelCache().directory() == dir.path() + "/b/heddle");
  const Environment no_xdg("XDG_CACHE_HOME", "relative/is/ignored");
  CHECK(KernelCache().directory() == dir.path() + "/c/.cache/heddle");
  const Environment no_home("HOME", nullptr);
  CHECK(KernelCache().directory().empty());
  CHECK_THAT(KernelCache().why_no_disk(), contains("HOME"));
  CHECK(KernelCache({.disk = false}).why_no_disk() == "The disk cache is switched off.");
}
