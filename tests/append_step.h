// One step as a serving loop makes it: the new rows are stored by append_kv, then attended to; on a GPU
// both in one graph. Judged against the double-precision reference over the rows that were given.
#pragma once

#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tools/check.h"

namespace heddle_tests {

struct AppendStep {
  heddle::AttentionConfig config;
  std::vector<std::pair<int, int>> lengths;  // qo_len, kv_len. With AppendKv::transform both equal: whole prompts
};

// Copies and each kind of transform.
std::vector<AppendStep> append_steps();

// The slots of the new rows hold NaN until append_kv has run.
heddle::tools::StepCheck append_and_attend(heddle::Engine& engine, const AppendStep& step);

}  // namespace heddle_tests
