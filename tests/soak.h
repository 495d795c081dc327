// Hours of serving in minutes: several Attentions of two Engines step and replay on several streams
// at once, some of them are made anew now and then, and every so many steps one is held against the
// reference. Beside it, what the process holds is watched: device memory, resident memory and open
// descriptors must not grow once every kernel is there.
#pragma once

#include <functional>

#include "tests/soak_lane.h"

namespace heddle_tests {

struct SoakOptions {
  heddle::EngineOptions engine;
  double seconds = 480;  // the first compilation included
  std::int64_t least_checks = 0;  // whatever time they take
  std::uint64_t seed = 1;
  int check_every = 100;                        // steps
  std::function<void(const std::string&)> say;  // a line a minute
};

// What the process holds at one time. Device memory is 0 where no driver tells it.
struct SoakSample {
  double seconds = 0;
  double device_mib = 0, host_mib = 0;
  int descriptors = 0;
};

struct SoakReport {
  SoakCounts counts;
  std::vector<SoakSample> samples;  // from the first step on
  std::vector<Found> wrong;         // the first ones
  std::string summary() const;
  // The last third of the time against the second; the first is for warming up.
  std::vector<Found> growth() const;
};

SoakReport soak(const SoakOptions& options);

}  // namespace heddle_tests
