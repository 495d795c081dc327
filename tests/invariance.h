// A fixed request put at random places of random batches: with batch_invariant its bits must be the
// same every time.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace heddle_tests {

struct Probe {
  heddle::AttentionConfig config;
  int qo_len = 1, kv_len = 0;
  heddle::ParamValues params;
  bool is_cut = true;  // whether it must be in pieces, so that the test tests something
};

// The most that a batch has beside the probe.
struct Company {
  int requests = 0, qo_len = 0, kv_len = 0;
};

struct InvarianceTally {
  std::mutex mutex;
  int batches = 0, same = 0;
  std::vector<std::string> wrong;
};

// Runs the probe in `batches` batches, each twice, in one workspace. The first batch is held
// against the double-precision reference.
void try_probe(heddle::Engine& engine, const Probe& probe, const Company& company, int batches,
               std::uint64_t seed, InvarianceTally& tally, bool batch_invariant = true);

// Decode and append, cut and whole, windows, no keys, several query rows. `scale` multiplies
// lengths of decode probes; at 1 they suit the CPU device.
std::vector<Probe> probes(int scale);

}  // namespace heddle_tests
