// Inside the room only: cache entries as files, and the locks between processes.
//
//   DIR/v1/ab/abcdef...   one entry (cache_entry.h); the folder is the key's first two digits
//   DIR/tmp/...           entries being written; renamed into place, so a reader sees all or
//   nothing DIR/locks/000 .. fff  empty files for flock, by the key's first three digits; never
//   deleted,
//                         because a deleted one could be locked twice under its two lives
//
// Nothing here throws for what the disk does. A folder that cannot be made or trusted switches the
// disk off; a read-only one still serves reads. The first reason is kept for why_not().
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernel_cache.h"

namespace heddle {

// Held until destroyed, or until the process dies: flock needs no clean-up.
class FileLock {
 public:
  FileLock() = default;
  explicit FileLock(int file) : file_(file) {}
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

class DiskCache {
 public:
  // How a try for a lock ended. `broken`: there is no locking here, so waiting would not help.
  enum class LockState { taken, busy, broken };

  explicit DiskCache(const CacheOptions& options);

  bool usable() const { return !dir_.empty(); }
  const std::string& dir() const { return dir_; }
  std::string why_not() const;

  std::optional<Artifact> read(const std::string& key, const std::string& key_text);
  void write(const std::string& key, const std::string& key_text, const CompileRequest& request,
             const Artifact& artifact);
  void remove(const std::string& key);
  LockState try_lock(const std::string& key, FileLock& lock);

  std::vector<CacheEntry> list() const;
  std::size_t clear();

  std::uint64_t damaged() const { return damaged_; }
  std::uint64_t write_failures() const { return write_failures_; }
  std::uint64_t evicted() const { return evicted_; }

 private:
  struct Stored {
    std::string path;
    std::uint64_t bytes;
    std::int64_t used_at_ns;
  };

  std::string entry_path(const std::string& key) const;
  std::string open_dir(const std::string& dir);  // a reason, or empty
  bool publish(const std::string& path, const std::string& bytes);
  void note_failure(const std::string& what, int error);
  std::vector<Stored> stored() const;
  LockState try_lock_file(const std::string& name, FileLock& lock);
  void keep_house(std::uint64_t written_bytes);  // evicts and sweeps, now and then
  void evict();
  void sweep_temporary() const;

  mode_t folder_mode() const { return shared_ ? 0777 : 0700; }
  mode_t file_mode() const { return shared_ ? 0666 : 0600; }
  bool is_trusted(const struct stat& status) const;

  std::string dir_;  // empty: no disk
  bool shared_ = false;
  std::uint64_t max_bytes_ = 0;
  std::atomic<std::uint64_t> damaged_ = 0, write_failures_ = 0, evicted_ = 0;
  mutable std::mutex mutex_;  // of what follows
  std::string why_not_;
  std::chrono::steady_clock::time_point kept_house_at_{};
  std::uint64_t written_since_ = 0;
  bool has_kept_house_ = false;
};

}  // namespace heddle
