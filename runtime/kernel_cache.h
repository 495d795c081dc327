// Door of the room `runtime`: bytes, keys, files, compilers and kernels, and nothing of attention.
//
// The room turns a text into something that runs. A CompileRequest (a rendered unit, the headers it
// may include, an architecture) goes to the KernelCache, which answers from memory, else from disk,
// else asks the Compiler it was given: NvrtcCompiler makes a cubin for a GPU, HostCompiler a shared
// object for the CPU device. A Module (driver.h) or a HostModule then loads the image, and the rest
// of driver.h is the CUDA driver seen through small owners.
//
// The key is XXH3-128 over everything that decides the image: the unit, the digest of the headers,
// the entry, the exact architecture and the compiler's identity (kind, version, build id, options).
// One key is compiled by one thread of one process at a time; the others wait for its bytes.
//
// The disk is a convenience that can fail at any moment and never fails a run: a missing, full,
// read-only, foreign or damaged directory costs a compile, not an error. The caller can ask why
// nothing is stored (why_no_disk); the room itself prints nothing.
//
// CUDA and NVRTC are opened with dlopen when first asked for, so that one binary runs on machines
// with and without them. cuda.h and nvrtc.h appear in this room's .cc files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/compiler.h"

namespace heddle {

struct CacheOptions {
  bool disk = true;
  // Empty: $HEDDLE_CACHE_DIR, else $XDG_CACHE_HOME/heddle, else $HOME/.cache/heddle, else no disk.
  std::string dir;
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // the least recently used go first
  double max_wait_s = 60;  // for another process that compiles the same key; then compile anyway
  // Accept a folder and entries that others may write, and let the umask decide who may. Whoever may
  // write there can run code in this process. HEDDLE_CACHE_SHARED=1 asks for it too.
  bool shared = false;
};

struct CacheCounters {
  std::uint64_t memory_hits = 0;
  std::uint64_t disk_hits = 0;
  std::uint64_t compiles = 0;
  std::uint64_t waits = 0;  // for another thread or process that compiled the same key
  std::uint64_t failed_compiles = 0;
  std::uint64_t damaged = 0;  // entries that were dropped: truncated, altered, foreign, refused
  std::uint64_t write_failures = 0;
  std::uint64_t evicted = 0;
};

// One stored kernel, for people.
struct CacheEntry {
  std::string key;
  std::string name;
  std::string arch;
  std::uint64_t bytes = 0;
  double compile_ms = 0;
  int registers = 0;
  std::int64_t used_at = 0;  // seconds since 1970, exact to the hour
};

// Thread-safe.
class KernelCache {
 public:
  enum class Origin { memory, disk, compiled };

  struct Result {
    std::shared_ptr<const Artifact> artifact;
    Origin origin = Origin::compiled;
    std::string key;
  };

  explicit KernelCache(CacheOptions options = {});
  ~KernelCache();

  // Throws what the compiler threw, and for a unit that has failed before throws it again without
  // compiling. About 0.4 us in memory, 15 us on disk.
  Result get(Compiler& compiler, const CompileRequest& request);

  static std::string key_of(const Compiler& compiler, const CompileRequest& request);

  // Drops one key from memory and disk, for an image that the driver refused to load.
  void forget(const std::string& key);

  CacheCounters counters() const;
  std::string directory() const;    // empty without a disk
  std::string why_no_disk() const;  // a sentence, or empty
  std::vector<CacheEntry> list() const;
  std::size_t clear();  // deletes every stored entry, returns how many

 private:
  struct State;
  std::unique_ptr<State> state_;
};

const char* name_of(KernelCache::Origin origin);  // "memory", "disk", "compiled"

}  // namespace heddle
