// Many random configurations against the reference: built-in variants and their compositions, all shapes, layouts and
// dtypes, cut and uncut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace heddle::tools {

struct RandomVerify {
  int count = 0;         // configurations
  std::uint64_t seed = 0;
  std::string variant;   // as --variant takes it; empty: built-in ones and compositions of them
  bool batch_invariant = false, portable = false;  // all of them, not only some
};

struct WrongCase {
  std::string problem, command;  // the command runs it alone
};

struct RandomVerdict {
  int right = 0, attentions = 0, compositions = 0;
  double worst = 0;                  // the largest error over what was allowed
  std::vector<WrongCase> wrong;
  std::vector<std::string> refused;  // sentences: compositions whose parts may not stand together
};

// Ten batches an Attention, Attentions on all cores. Error where one cannot be compiled.
RandomVerdict verify_random(Engine& engine, const RandomVerify& wanted);

}  // namespace heddle::tools
