#include "runtime/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "runtime/cache_entry.h"
#include "runtime/files.h"

namespace heddle {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxEntryBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kTouchAfterSeconds = 3600;  // relatime makes atime useless for recency

// Not std::random_device: libstdc++'s, linked in, asks for glibc 2.36 where it was built with it.
std::uint64_t random_number() {
  std::uint64_t number = 0;
  return getrandom(&number, sizeof number, 0) == sizeof number ? number : 0;
}

std::string words_of(int error) { return std::generic_category().message(error); }

std::string absolute_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? value : std::string{};
}

std::string default_dir() {
  if (const char* dir = std::getenv("HEDDLE_CACHE_DIR"); dir != nullptr && dir[0] != '\0')
    return dir;
  if (const std::string cache = absolute_environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/heddle";
  }
  if (const std::string home = absolute_environment("HOME"); !home.empty()) {
    return home + "/.cache/heddle";
  }
  return {};
}

bool asks_for_shared() {
  const char* value = std::getenv("HEDDLE_CACHE_SHARED");
  return value != nullptr && std::string_view(value) == "1";
}

// Like mkdir -p.
void make_dirs(const fs::path& path, mode_t mode) {
  if (path.has_parent_path() && !fs::exists(path.parent_path()))
    make_dirs(path.parent_path(), mode);
  mkdir(path.c_str(), mode);
}

bool is_of_others(const struct stat& status) {
  return status.st_uid != geteuid() && status.st_uid != 0;
}
bool is_open_to_others(const struct stat& status) {
  return (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

bool read_all(int file, std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

bool is_same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

FileLock::~FileLock() {
  if (file_ < 0) return;
  flock(file_,
        LOCK_UN);  // a child forked meanwhile holds the same lock, and close alone would not end it
  close(file_);
}
FileLock::FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

DiskCache::DiskCache(const CacheOptions& options)
    : shared_(options.shared || asks_for_shared()), max_bytes_(options.max_bytes) {
  if (!options.disk) {
    why_not_ = "The disk cache is switched off.";
    return;
  }
  try {
    const std::string dir = options.dir.empty() ? default_dir() : options.dir;
    why_not_ = dir.empty() ? "Kernels are kept in memory only: none of HEDDLE_CACHE_DIR, "
                             "XDG_CACHE_HOME and HOME names a folder."
                           : open_dir(fs::absolute(dir).lexically_normal().string());
  } catch (const std::exception& error) {
    why_not_ = fmt::format("Kernels are kept in memory only: {}.", error.what());
  }
}

std::string DiskCache::open_dir(const std::string& dir) {
  make_dirs(dir, folder_mode());
  struct stat status {};
  if (stat(dir.c_str(), &status) != 0) {
    return fmt::format("Kernels are kept in memory only: the cache folder {} cannot be made ({}).",
                       dir, words_of(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    return fmt::format("Kernels are kept in memory only: {} is not a folder.", dir);
  }
  // An entry is code that this process will run, so nobody else may be able to plant one.
  if (!shared_ && is_of_others(status)) {
    return fmt::format(
        "Kernels are kept in memory only: the cache folder {} belongs to another user "
        "(id {}); name another one with HEDDLE_CACHE_DIR, or set HEDDLE_CACHE_SHARED=1 if you "
        "would "
        "run that user's code.",
        dir, status.st_uid);
  }
  if (!shared_ && is_open_to_others(status)) {
    return fmt::format(
        "Kernels are kept in memory only: other users may write to the cache folder {}; "
        "take that right away with chmod go-w, or set HEDDLE_CACHE_SHARED=1 if you would run their "
        "code.",
        dir);
  }
  for (const char* part : {"/v1", "/tmp", "/locks"}) mkdir((dir + part).c_str(), folder_mode());
  dir_ = dir;
  return {};
}

// The folder's owner is not enough: an entry may date from a time when others could write there.
bool DiskCache::is_trusted(const struct stat& status) const {
  return shared_ || !(is_of_others(status) || is_open_to_others(status));
}

std::string DiskCache::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

void DiskCache::note_failure(const std::string& what, int error) {
  ++write_failures_;
  const std::lock_guard lock(mutex_);
  if (why_not_.empty()) {
    why_not_ = fmt::format("New kernels are not stored: {} cannot be written ({}).", what,
                           words_of(error));
  }
}

std::string DiskCache::entry_path(const std::string& key) const {
  return dir_ + "/v1/" + key.substr(0, 2) + "/" + key;
}

std::optional<Artifact> DiskCache::read(const std::string& key, const std::string& key_text) {
  if (!usable()) return std::nullopt;
  const std::string path = entry_path(key);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  struct stat status {};
  std::optional<Artifact> artifact;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && is_trusted(status) &&
      static_cast<std::uint64_t>(status.st_size) <= kMaxEntryBytes) {
    std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
    if (read_all(file, bytes)) artifact = read_entry(bytes, key_text);
  }
  if (artifact) {
    if (std::time(nullptr) - status.st_mtim.tv_sec > kTouchAfterSeconds) futimens(file, nullptr);
  } else {
    ++damaged_;
    // Only the file that was read: another process may have replaced it with a good one by now.
    struct stat now {};
    if (lstat(path.c_str(), &now) == 0 && is_same_file(status, now)) unlink(path.c_str());
  }
  close(file);
  return artifact;
}

void DiskCache::write(const std::string& key, const std::string& key_text,
                      const CompileRequest& request, const Artifact& artifact) {
  if (!usable()) return;
  const std::string bytes = write_entry(request.name, request.arch, key_text, artifact);
  const std::string path = entry_path(key);
  mkdir(path.substr(0, path.rfind('/')).c_str(), folder_mode());
  if (publish(path, bytes)) keep_house(bytes.size());
}

// Written aside, forced to the disk, then renamed: after a kill or a power cut there is the old
// entry, none, or the whole new one.
bool DiskCache::publish(const std::string& path, const std::string& bytes) {
  std::string temporary;
  int file = -1;
  for (int tries = 0; file < 0 && tries < 3; ++tries) {
    temporary = fmt::format("{}/tmp/{}-{:016x}", dir_, getpid(), random_number());
    file =
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, file_mode());
    if (file < 0 && errno != EEXIST) break;
  }
  if (file < 0) {
    note_failure(dir_, errno);
    return false;
  }
  bool is_done = write_all(file, bytes) && fsync(file) == 0;
  int error = errno;
  if (close(file) != 0 && is_done) {
    is_done = false;
    error = errno;
  }
  if (is_done && rename(temporary.c_str(), path.c_str()) != 0) {
    is_done = false;
    error = errno;
  }
  if (!is_done) {
    unlink(temporary.c_str());
    note_failure(dir_, error);
  }
  return is_done;
}

void DiskCache::remove(const std::string& key) {
  if (!usable()) return;
  if (unlink(entry_path(key).c_str()) == 0) ++damaged_;
}

DiskCache::LockState DiskCache::try_lock(const std::string& key, FileLock& lock) {
  return usable() ? try_lock_file(key.substr(0, 3), lock) : LockState::broken;
}

DiskCache::LockState DiskCache::try_lock_file(const std::string& name, FileLock& lock) {
  const std::string path = dir_ + "/locks/" + name;
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, file_mode());
  if (file < 0) return LockState::broken;
  int result;
  do {
    result = flock(file, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    lock = FileLock(file);
    return LockState::taken;
  }
  const bool is_busy = errno == EWOULDBLOCK;
  close(file);
  return is_busy ? LockState::busy : LockState::broken;
}

}  // namespace heddle
