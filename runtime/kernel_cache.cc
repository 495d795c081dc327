#include "runtime/kernel_cache.h"

#include <charconv>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "runtime/disk_cache.h"
#include "runtime/hash.h"

namespace heddle {

namespace {

using Outcome = std::shared_ptr<const Artifact>;
using Clock = std::chrono::steady_clock;

struct KeyHash {
  std::size_t operator()(Hash128 key) const { return key.lo; }
};

// The inputs of a compile, in the order in which they are hashed and stored. `first` is the format
// of key and entry: a new number where either changes its meaning.
struct KeyFields {
  std::string_view first = "heddle kernel 1";
  std::string_view compiler, arch, entry, headers, unit;

  Hash128 hash() const { return hash_fields({first, compiler, arch, entry, headers, unit}); }
  std::string text() const {
    std::string text;
    for (std::string_view field : {first, compiler, arch, entry, headers, unit}) {
      text += fmt::format("{}:", field.size());
      text.append(field).append("\n");
    }
    return text;
  }
};

// `digest` keeps the headers' digest alive where the request brings none.
KeyFields fields_of(const Compiler& compiler, const CompileRequest& request, std::string& digest) {
  if (request.headers_digest.empty()) digest = digest_of(request.headers);
  KeyFields fields;
  fields.compiler = compiler.identity();
  fields.arch = request.arch;
  fields.entry = request.entry;
  fields.headers = request.headers_digest.empty() ? digest : request.headers_digest;
  fields.unit = request.unit;
  return fields;
}

bool is_ready(const std::shared_future<Outcome>& kernel) {
  return kernel.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::optional<Hash128> parse_key(const std::string& key) {
  Hash128 hash;
  const char* text = key.data();
  if (key.size() != 32 || std::from_chars(text, text + 16, hash.hi, 16).ptr != text + 16 ||
      std::from_chars(text + 16, text + 32, hash.lo, 16).ptr != text + 32) {
    return std::nullopt;
  }
  return hash;
}

}  // namespace

struct KernelCache::State {
  explicit State(const CacheOptions& options) : options(options), disk(options) {}

  CacheOptions options;
  DiskCache disk;
  std::mutex mutex;  // of what follows; never held through a read or a compile
  // A failed compile stays as a future that throws, so that a bad unit costs its half second once.
  std::unordered_map<Hash128, std::shared_future<Outcome>, KeyHash> kernels;
  CacheCounters counters;

  void count(std::uint64_t CacheCounters::*counter) {
    const std::lock_guard lock(mutex);
    ++(counters.*counter);
  }

  Outcome find_or_compile(Compiler&, const CompileRequest&, const KeyFields&,
                          const std::string& key, Origin& origin);
  std::optional<Artifact> wait_for_lock(const std::string& key, const std::string& key_text,
                                        FileLock& lock);
  void settle_failure(Hash128 hash, std::promise<Outcome>& promise);
};

// Until the lock is ours, or the process that has it has stored the entry, or patience ends: a
// lock on a network disk may never come free, and a compile costs only half a second.
std::optional<Artifact> KernelCache::State::wait_for_lock(const std::string& key,
                                                          const std::string& key_text,
                                                          FileLock& lock) {
  using std::chrono::milliseconds;
  const auto end = Clock::now() + std::chrono::duration<double>(options.max_wait_s);
  auto pause = milliseconds(1);
  bool has_waited = false;
  while (true) {
    const DiskCache::LockState state = disk.try_lock(key, lock);
    // Under the lock too: it may have been stored between the first look and now.
    if (std::optional<Artifact> artifact = disk.read(key, key_text)) return artifact;
    if (state != DiskCache::LockState::busy || Clock::now() >= end) return std::nullopt;
    if (!has_waited) count(&CacheCounters::waits);
    has_waited = true;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(20));
  }
}

Outcome KernelCache::State::find_or_compile(Compiler& compiler, const CompileRequest& request,
                                            const KeyFields& fields, const std::string& key,
                                            Origin& origin) {
  const std::string key_text = disk.usable() ? fields.text() : std::string{};
  std::optional<Artifact> artifact = disk.read(key, key_text);
  FileLock lock;
  if (!artifact && disk.usable()) artifact = wait_for_lock(key, key_text, lock);
  if (artifact) {
    origin = Origin::disk;
    count(&CacheCounters::disk_hits);
    return std::make_shared<const Artifact>(std::move(*artifact));
  }
  origin = Origin::compiled;
  count(&CacheCounters::compiles);
  // The bytes in memory are the answer: what was just written is never read back, because a
  // network disk may not show it yet.
  auto compiled = std::make_shared<const Artifact>(compiler.compile(request));
  disk.write(key, key_text, request, *compiled);
  return compiled;
}

// Called while the compiler's exception is being handled.
void KernelCache::State::settle_failure(Hash128 hash, std::promise<Outcome>& promise) {
  promise.set_exception(std::current_exception());
  bool is_refused = false;
  try {
    throw;
  } catch (const Error& error) {
    is_refused = error.kind() == ErrorKind::compile_failed;
  } catch (...) {
  }
  const std::lock_guard lock(mutex);
  ++counters.failed_compiles;
  // Only the unit's own fault lasts; a full disk or too little memory may pass.
  if (!is_refused) kernels.erase(hash);
}

KernelCache::KernelCache(CacheOptions options) : state_(std::make_unique<State>(options)) {}
KernelCache::~KernelCache() = default;

std::string KernelCache::key_of(const Compiler& compiler, const CompileRequest& request) {
  std::string digest;
  return hex(fields_of(compiler, request, digest).hash());
}

KernelCache::Result KernelCache::get(Compiler& compiler, const CompileRequest& request) {
  State& s = *state_;
  std::string digest;
  const KeyFields fields = fields_of(compiler, request, digest);
  const Hash128 hash = fields.hash();
  Result result{nullptr, Origin::memory, hex(hash)};
  std::shared_future<Outcome> found;
  std::optional<std::promise<Outcome>> promise;  // ours to keep, if nobody came before
  {
    const std::lock_guard lock(s.mutex);
    if (const auto at = s.kernels.find(hash); at != s.kernels.end()) {
      found = at->second;
      ++s.counters.memory_hits;
      if (!is_ready(found)) ++s.counters.waits;
    } else {
      s.kernels.emplace(hash, promise.emplace().get_future().share());
    }
  }
  if (!promise) {
    result.artifact = found.get();
    return result;
  }
  try {
    result.artifact = s.find_or_compile(compiler, request, fields, result.key, result.origin);
    promise->set_value(result.artifact);
  } catch (...) {
    s.settle_failure(hash, *promise);
    throw;
  }
  return result;
}

void KernelCache::forget(const std::string& key) {
  if (const std::optional<Hash128> hash = parse_key(key)) {
    state_->disk.remove(key);
    const std::lock_guard lock(state_->mutex);
    state_->kernels.erase(*hash);
  }
}

CacheCounters KernelCache::counters() const {
  CacheCounters counters;
  {
    const std::lock_guard lock(state_->mutex);
    counters = state_->counters;
  }
  counters.damaged = state_->disk.damaged();
  counters.write_failures = state_->disk.write_failures();
  counters.evicted = state_->disk.evicted();
  return counters;
}

std::string KernelCache::directory() const { return state_->disk.dir(); }
std::string KernelCache::why_no_disk() const { return state_->disk.why_not(); }
std::vector<CacheEntry> KernelCache::list() const { return state_->disk.list(); }

std::size_t KernelCache::clear() {
  const std::size_t count = state_->disk.clear();
  const std::lock_guard lock(state_->mutex);
  // A kernel that is being compiled stays, so that its waiters and later callers meet it.
  std::erase_if(state_->kernels, [](const auto& kernel) { return is_ready(kernel.second); });
  return count;
}

const char* name_of(KernelCache::Origin origin) {
  switch (origin) {
    case KernelCache::Origin::memory:
      return "memory";
    case KernelCache::Origin::disk:
      return "disk";
    case KernelCache::Origin::compiled:
      return "compiled";
  }
  return "?";
}

}  // namespace heddle
