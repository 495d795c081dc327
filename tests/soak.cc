#include "tests/soak.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "tests/draw.h"
#include "tools/parallel.h"

namespace heddle_tests {

using namespace heddle;
using tools::Random;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMib = 1024 * 1024;
constexpr std::size_t kMostWrong = 20;
constexpr int kMostAtOnce = 4;           // lanes of one round
constexpr int kRoundsOfALane = 150;      // until some lane is made anew
constexpr int kRoundsOfAnEngine = 3000;  // until some Engine is, with all its lanes
constexpr double kStallSeconds = 90;

// By how much the last third may stand above the second. A leak of one small allocation a step, or
// of one workspace, graph or module each time a lane is made anew, comes to more.
constexpr double kDeviceGrowthMib = 16, kHostGrowthMib = 24;
constexpr int kDescriptorGrowth = 3;

// The driver's own word for it. The runtime has no use for it, so its table has none.
double device_mib() {
  using MemGetInfo = int (*)(std::size_t * free, std::size_t * total);
  static const MemGetInfo get = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? reinterpret_cast<MemGetInfo>(dlsym(library, "cuMemGetInfo_v2")) : nullptr;
  }();
  std::size_t free = 0, total = 0;
  if (get == nullptr || get(&free, &total) != 0) return 0;
  return double(total - free) / kMib;
}

double resident_mib() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return double(resident * sysconf(_SC_PAGESIZE)) / kMib;
}

int open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return int(std::distance(begin(folder), end(folder)));
}

// A kernel that never ends would hang the soak without a word.
class Watchdog {
 public:
  explicit Watchdog(std::uint64_t seed) : seed_(seed) {}
  void step(std::int64_t step) { step_ = step, last_ = Clock::now(); }

 private:
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (std::chrono::duration<double>(Clock::now() - last_.load()).count() < kStallSeconds)
        continue;
      fmt::print(stderr, "soak: nothing has ended for {} s after step {} of seed {}\n",
                 kStallSeconds, step_.load(), seed_);
      std::_Exit(3);
    }
  }

  const std::uint64_t seed_;
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<Clock::time_point> last_ = Clock::now();
  std::jthread thread_{[this](std::stop_token stop) { watch(stop); }};
};

// What differs among the lanes by more than chance; heads, dims and constants are drawn.
struct LaneKind {
  const char* variant;
  int page_size;
  DType dtype;
  AppendKv append_kv = AppendKv::none;
  bool batch_invariant = false, share_prefixes = false;
  int max_qo_len = 0;
};

constexpr LaneKind kLaneKinds[] = {
    {"causal", 16, DType::bf16},
    {"gemma2", 16, DType::bf16},
    {"softmax", 1, DType::f16, AppendKv::none, false, true},
    {"causal", 16, DType::bf16, AppendKv::copy, false, true},
    {"rope", 16, DType::bf16, AppendKv::copy},
    {"llama31_rope", 64, DType::bf16, AppendKv::transform},
    {"attention_sink", 0, DType::f16},
    {"streaming_llm", 1, DType::bf16},
    {"custom_mask", 16, DType::bf16},
    {"alibi_rule", 64, DType::f16, AppendKv::none, true},
    {"causal", 64, DType::bf16, AppendKv::copy, true, false, 1},
    {"sigmoid", 16, DType::f16},
    {"qk_norm", 0, DType::bf16, AppendKv::copy},
    {"prefix_lm", 64, DType::bf16},
};

// An Engine and what was made with it.
struct Home {
  std::unique_ptr<Engine> engine;
  std::vector<AttentionConfig> configs;
  std::vector<std::unique_ptr<SoakLane>> lanes;
};

class Soak {
 public:
  explicit Soak(const SoakOptions& options);
  void run(SoakReport& report);

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool on_gpu() const { return homes_[0].engine->device().kind == DeviceKind::cuda; }
  AttentionConfig draw_config(const LaneKind& kind);
  void open(Home& home);
  std::unique_ptr<SoakLane> make_lane(const Home& home, std::size_t index);
  void renew_lane();
  void renew_home();
  std::vector<SoakLane*> draw_lanes();
  void round();
  void wait() const;
  void note(const Found& found);
  void sample();
  std::string line() const;

  const SoakOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  Random random_;
  std::vector<StreamHandle> handles_;
  std::vector<Stream> streams_;
  std::array<Home, 2> homes_;  // destroyed before the streams, which lanes use to their end
  SoakReport* report_ = nullptr;
  double next_sample_ = 0, next_line_ = 60;
};

Soak::Soak(const SoakOptions& options) : options_(options), random_(options.seed) {}

AttentionConfig Soak::draw_config(const LaneKind& kind) {
  // More heads make sharing worth its cost.
  const int kv_heads = kind.share_prefixes ? 2 : pick(random_, {1, 2});
  const int group = kind.share_prefixes ? 4 : pick(random_, {1, 4, 8});
  AttentionConfig config{.variant = kind.variant,
                         .num_qo_heads = kv_heads * group,
                         .num_kv_heads = kv_heads,
                         .head_dim = pick(random_, {64, 128}),
                         .q_dtype = kind.dtype,
                         .kv_dtype = kind.dtype,
                         .page_size = kind.page_size,
                         .max_qo_len = kind.max_qo_len,
                         .batch_invariant = kind.batch_invariant,
                         .share_prefixes = kind.share_prefixes,
                         .append_kv = kind.append_kv};
  config.constants = random_params(random_, VariantRegistry().at(kind.variant), true);
  return config;
}

void Soak::open(Home& home) {
  home.engine = std::make_unique<Engine>(options_.engine);
  ++report_->counts.engines;
  // All at once: compiling them one after the other would take most of the time.
  std::vector<Attention> ready(home.configs.size());
  tools::parallel_for(int(ready.size()), [&](int i) {
    ready[std::size_t(i)] = home.engine->attention(home.configs[std::size_t(i)]);
  });
  if (streams_.empty()) {
    for (int i = 0; on_gpu() && i < 3; ++i) handles_.push_back(StreamHandle::create());
    for (const StreamHandle& handle : handles_) streams_.push_back(handle.get());
    streams_.push_back(nullptr);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) home.lanes.push_back(make_lane(home, i));
}

std::unique_ptr<SoakLane> Soak::make_lane(const Home& home, std::size_t index) {
  ++report_->counts.attentions;
  return std::make_unique<SoakLane>(*home.engine, home.engine->attention(home.configs[index]),
                                    random_.bits(), streams_[0]);
}

// Its kernels are unloaded and loaded again, or stay loaded where the new one comes first.
void Soak::renew_lane() {
  Home& home = homes_[std::size_t(random_.below(2))];
  const std::size_t index = std::size_t(random_.below(int(home.lanes.size())));
  if (random_.below(2)) home.lanes[index].reset();
  home.lanes[index] = make_lane(home, index);
}

// What an Engine has made may outlive it.
void Soak::renew_home() {
  Home& home = homes_[std::size_t(random_.below(2))];
  if (random_.below(2)) home.engine.reset();
  home.lanes.clear();
  open(home);
}

std::vector<SoakLane*> Soak::draw_lanes() {
  std::vector<SoakLane*> all;
  for (const Home& home : homes_)
    for (const auto& lane : home.lanes) all.push_back(lane.get());
  const std::size_t count = std::size_t(1 + random_.below(kMostAtOnce));
  for (std::size_t i = 0; i < count; ++i)
    std::swap(all[i], all[i + std::size_t(random_.below(int(all.size() - i)))]);
  all.resize(count);
  return all;
}

void Soak::wait() const {
  if (!on_gpu()) return;
  for (const Stream stream : streams_) synchronize(stream);
}

void Soak::round() {
  SoakCounts& counts = report_->counts;
  const std::vector<SoakLane*> lanes = draw_lanes();
  const auto is_checked = [&](std::size_t i) {
    return (counts.steps + std::int64_t(i)) % options_.check_every == 0;
  };
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i]->draw(is_checked(i));
  if (on_gpu()) synchronize(nullptr);
  for (SoakLane* lane : lanes) lane->launch(streams_, counts);
  wait();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    note(lanes[i]->compare());
    if (!is_checked(i)) continue;
    note(lanes[i]->judge());
    ++counts.checks;
  }
  counts.steps += std::int64_t(lanes.size());
}

void Soak::note(const Found& found) {
  if (found.empty() || report_->wrong.size() >= kMostWrong) return;
  report_->wrong.push_back(
      fmt::format("seed {}, round of step {}: {}", options_.seed, report_->counts.steps, found));
}

std::string Soak::line() const {
  const SoakCounts& c = report_->counts;
  const SoakSample& s = report_->samples.back();
  return fmt::format(
      "soak {:.0f} s: {} steps, {} checks, {} replays, {} runs, {} wrong; device {:.0f} MiB, host "
      "{:.0f} MiB, {} descriptors",
      seconds(), c.steps, c.checks, c.replays, c.runs, report_->wrong.size(), s.device_mib,
      s.host_mib, s.descriptors);
}

// Taken between rounds, with every lane there, so that equal figures are to be expected.
void Soak::sample() {
  if (seconds() < next_sample_) return;
  next_sample_ = seconds() + std::min(1.0, options_.seconds / 100);
  report_->samples.push_back({seconds(), device_mib(), resident_mib(), open_descriptors()});
  if (seconds() < next_line_) return;
  next_line_ += 60;
  if (options_.say) options_.say(line());
}

void Soak::run(SoakReport& report) {
  report_ = &report;
  for (std::size_t i = 0; i < std::size(kLaneKinds); ++i)
    homes_[i % 2].configs.push_back(draw_config(kLaneKinds[i]));
  homes_[1].configs.push_back(homes_[0].configs[0]);
  for (Home& home : homes_) open(home);
  if (options_.say)
    options_.say(fmt::format("soak: {} Attentions ready after {:.0f} s", report.counts.attentions,
                             seconds()));
  Watchdog watchdog(options_.seed);
  const auto goes_on = [&] {
    return seconds() < options_.seconds || report.counts.checks < options_.least_checks;
  };
  for (std::int64_t rounds = 1; goes_on(); ++rounds) {
    round();
    if (rounds % kRoundsOfALane == 0) renew_lane();
    if (rounds % kRoundsOfAnEngine == 0) renew_home();
    watchdog.step(report.counts.steps);
    sample();
  }
  wait();
}

template <class Value>
auto largest(std::span<const SoakSample> samples, Value value) {
  auto most = value(samples[0]);
  for (const SoakSample& sample : samples) most = std::max(most, value(sample));
  return most;
}

double device_of(const SoakSample& s) { return s.device_mib; }
double host_of(const SoakSample& s) { return s.host_mib; }
double descriptors_of(const SoakSample& s) { return s.descriptors; }

}  // namespace

std::string SoakReport::summary() const {
  const SoakCounts& c = counts;
  std::string text = fmt::format(
      "{} steps, {} checks, {} wrong, {} replays, {} runs, {} cut streams, {} shared prefixes, {} "
      "Attentions, {} Engines",
      c.steps, c.checks, wrong.size(), c.replays, c.runs, c.cut_streams, c.shared_prefixes,
      c.attentions, c.engines);
  if (samples.empty()) return text;
  const auto add = [&](const char* what, double (*value)(const SoakSample&)) {
    text += fmt::format("; {} {:.1f} at first, {:.1f} at most, {:.1f} at the end", what,
                        value(samples.front()), largest(samples, value), value(samples.back()));
  };
  add("device MiB", device_of), add("host MiB", host_of), add("descriptors", descriptors_of);
  return text;
}

std::vector<Found> SoakReport::growth() const {
  const std::size_t third = samples.size() / 3;
  if (third < 3) return {"too few samples to tell whether memory grows"};
  const auto all = std::span(samples);
  const auto second = all.subspan(third, third), last = all.subspan(2 * third);
  std::vector<Found> grown;
  const auto check = [&](const char* what, double (*value)(const SoakSample&), double allowed) {
    const double before = largest(second, value), after = largest(last, value);
    if (after > before + allowed)
      grown.push_back(fmt::format("{} grew from {:.1f} to {:.1f} in the last third; {} is allowed",
                                  what, before, after, allowed));
  };
  check("device MiB", device_of, kDeviceGrowthMib);
  check("host MiB", host_of, kHostGrowthMib);
  check("open descriptors", descriptors_of, kDescriptorGrowth);
  return grown;
}

SoakReport soak(const SoakOptions& options) {
  SoakReport report;
  try {
    Soak(options).run(report);
  } catch (const std::exception& error) {
    report.wrong.push_back(fmt::format("seed {}, stopped behind step {}: {}", options.seed,
                                       report.counts.steps, error.what()));
  }
  return report;
}

}  // namespace heddle_tests
