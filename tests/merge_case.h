// Seeded partial states, each with strides of its own, and their merge in double precision. States that
// are empty hold NaN, and so does everything behind the rows.
#pragma once

#include <string>
#include <vector>

#include "engine/merge_states.h"
#include "tools/device_memory.h"
#include "tools/random.h"

namespace heddle_tests {

struct MergeShape {
  heddle::MergeConfig config;
  int num_states = 1, num_rows = 0, num_heads = 1;
  std::string describe() const;
};

class MergeCase {
 public:
  MergeCase(const heddle::Engine& engine, const MergeShape& shape, std::uint64_t seed);

  std::vector<heddle::PartialState> states() const;
  heddle::PartialState result() const { return state(result_); }

  // Elements of o, row after row, and the lse behind them; the bits of f32.
  std::vector<std::uint32_t> read(const heddle::PartialState& state) const;
  // Empty where the result is right and nothing beside it was written.
  std::string verdict() const;

 private:
  struct State {
    heddle::DType dtype;
    std::int64_t row = 0, head = 0, lse_row = 0, lse_head = 0;  // strides
    heddle::tools::DeviceMemory o, lse;
    std::vector<double> values, lse_values;  // [rows, heads, dim], [rows, heads]
  };
  State make_state(const heddle::Engine& engine, heddle::DType dtype, heddle::tools::Random& random, bool filled);
  heddle::PartialState state(const State& s) const;
  std::string verdict_of_row(int row, int head, const std::vector<double>& o, double lse) const;

  MergeShape shape_;
  std::vector<State> states_;
  State result_;
};

MergeShape random_merge(heddle::tools::Random& random);

}  // namespace heddle_tests
