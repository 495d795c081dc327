// Listing, clearing, eviction and the sweep of DiskCache.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "runtime/cache_entry.h"
#include "runtime/disk_cache.h"

namespace heddle {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::minutes kHouseEvery{1};
constexpr std::int64_t kStaleSeconds = 3600;
constexpr std::size_t kFrontBytes = 4096;  // holds the header, a name and an arch
constexpr std::size_t kKeyDigits = 32;

std::int64_t used_at_ns(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// Calls visit(path) for each file in `dir`; files that vanish meanwhile do not matter.
template <typename Visit>
void for_each_file(const std::string& dir, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    visit(at->path());
  }
}

std::string read_front(const std::string& path) {
  std::string bytes(kFrontBytes, '\0');
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const ssize_t got = file >= 0 ? ::read(file, bytes.data(), bytes.size()) : 0;
  if (file >= 0) close(file);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

}  // namespace

std::vector<DiskCache::Stored> DiskCache::stored() const {
  std::vector<Stored> entries;
  for_each_file(dir_ + "/v1", [&](const fs::path& folder) {
    for_each_file(folder.string(), [&](const fs::path& file) {
      struct stat status {};
      if (file.filename().string().size() != kKeyDigits) return;
      if (lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
      entries.push_back(
          {file.string(), static_cast<std::uint64_t>(status.st_size), used_at_ns(status)});
    });
  });
  return entries;
}

std::vector<CacheEntry> DiskCache::list() const {
  std::vector<CacheEntry> entries;
  if (!usable()) return entries;
  for (const Stored& file : stored()) {
    const std::optional<EntryFront> front = read_entry_front(read_front(file.path));
    if (!front) continue;
    entries.push_back({fs::path(file.path).filename().string(), front->name, front->arch,
                       file.bytes, front->header.compile_ms, front->header.registers,
                       file.used_at_ns / 1'000'000'000});
  }
  std::sort(entries.begin(), entries.end(), [](const CacheEntry& a, const CacheEntry& b) {
    return std::tie(a.name, a.arch, a.key) < std::tie(b.name, b.arch, b.key);
  });
  return entries;
}

std::size_t DiskCache::clear() {
  std::size_t count = 0;
  if (!usable()) return count;
  for (const Stored& file : stored()) count += unlink(file.path.c_str()) == 0;
  return count;
}

void DiskCache::keep_house(std::uint64_t written_bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    written_since_ += written_bytes;
    // A scan reads the whole tree: rarely, unless much was written.
    const bool is_due =
        !has_kept_house_ || now - kept_house_at_ > kHouseEvery || written_since_ > max_bytes_ / 8;
    if (!is_due) return;
    has_kept_house_ = true;
    kept_house_at_ = now;
    written_since_ = 0;
  }
  FileLock lock;
  if (try_lock_file("house", lock) != LockState::taken) return;  // somebody else is at it
  evict();
  sweep_temporary();
}

void DiskCache::evict() {
  std::vector<Stored> entries = stored();
  std::uint64_t total = 0;
  for (const Stored& entry : entries) total += entry.bytes;
  if (total <= max_bytes_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Stored& a, const Stored& b) { return a.used_at_ns < b.used_at_ns; });
  const std::uint64_t target = max_bytes_ / 10 * 9;  // some air, so that not every write evicts
  for (const Stored& entry : entries) {
    if (total <= target) return;
    struct stat status {};
    if (lstat(entry.path.c_str(), &status) == 0) {
      if (used_at_ns(status) != entry.used_at_ns) continue;  // used or replaced since the scan
      if (unlink(entry.path.c_str()) != 0 && errno != ENOENT) continue;
      ++evicted_;
    }
    total -= entry.bytes;
  }
}

void DiskCache::sweep_temporary() const {
  const std::int64_t now = std::time(nullptr);
  for_each_file(dir_ + "/tmp", [now](const fs::path& file) {
    struct stat status {};
    if (lstat(file.c_str(), &status) == 0 && now - status.st_mtim.tv_sec > kStaleSeconds) {
      unlink(file.c_str());
    }
  });
}

}  // namespace heddle
