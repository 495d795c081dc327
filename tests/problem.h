// A seeded attention problem with everything that can vary: lengths, pages in shuffled order, padded and
// different strides of q, k, v and o, values of the variant's own tensors, NaN in every byte that must
// not matter. Runs on any engine and is judged against the double-precision reference.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/kernel_source.h"
#include "engine/reference.h"
#include "tools/device_memory.h"
#include "tools/key_ranges.h"
#include "tools/random_case.h"
#include "tools/variant_tensors.h"

namespace heddle_tests {

struct ProblemShape {
  heddle::AttentionConfig config;
  heddle::KvLayout layout = heddle::KvLayout::NHD;
  heddle::ParamValues params;
  std::vector<int> qo_lens, kv_lens;
  bool want_lse = true;
  std::vector<int> shared_pages;  // of each request: leading pages that are those of the one before it
  // In place of random values: every element of q, of k and of v.
  std::optional<std::array<float, 3>> constant;
  // Of a variant that asks for them; left out, they are drawn.
  std::optional<heddle::tools::KeyRanges> ranges;
  std::string describe() const;
  heddle::ParamValues all_params() const;  // with the config's constants
};

struct Verdict {
  bool ok = false;
  double error = 0, allowed = 0;  // of o: the largest, and allowed_error() of the plain computation
  double lse_error = 0;
  std::string what;  // why not ok
};

class Problem {
 public:
  Problem(const heddle::Engine& engine, const ProblemShape& shape, std::uint64_t seed);

  heddle::Batch batch() const;
  heddle::Tensors tensors() const;
  heddle::Maxima maxima() const;
  const ProblemShape& shape() const { return shape_; }

  void poison_output();
  // Makes these keys of a request NaN, in K and in V.
  void poison_keys(int request, int begin, int end);
  // Raw bits of all of o and lse, for comparing runs.
  std::vector<std::uint16_t> o_bits() const;
  std::vector<std::uint32_t> lse_bits() const;

  // Every request against the reference; every byte outside the rows must still be poison.
  Verdict judge() const;

 private:
  struct Strides {
    std::int64_t outer = 0, row = 0, head = 0;
  };
  void lay_out(heddle::tools::Random& random);
  void fill(heddle::tools::Random& random, std::uint64_t seed);
  std::int64_t kv_row(int request, int kv_pos, const Strides& strides) const;
  Verdict judge_request(int request, const std::vector<std::uint16_t>& o, const std::vector<float>& lse) const;
  std::vector<double> gather_kv(int request, bool keys) const;
  bool rest_is_poison(const std::vector<std::uint16_t>& o) const;

  const heddle::Engine& engine_;
  ProblemShape shape_;
  std::vector<std::int32_t> qo_indptr_, kv_indptr_, last_page_len_, kv_indices_;
  Strides q_, k_, v_, o_;
  std::int64_t num_pages_ = 0;
  std::vector<std::uint16_t> q_host_, k_host_, v_host_, o_poison_;
  heddle::tools::DeviceMemory q_device_, k_device_, v_device_, o_device_, lse_device_, indices_device_;
  heddle::tools::VariantTensors own_;
  heddle::tools::KeyRanges ranges_;
};

// On all cores, so that what follows takes them from the cache: what compiling one by one costs most.
void compile_all(heddle::Engine& engine, const std::vector<heddle::AttentionConfig>& configs);

// plan + run on the legacy stream, and wait.
void plan_and_run(heddle::Attention& attention, heddle::Workspace& workspace, Problem& problem);

using heddle::tools::random_config;
using heddle::tools::random_head_dims;
using heddle::tools::random_params;
ProblemShape random_shape(heddle::tools::Random& random, const heddle::AttentionConfig& config,
                          const heddle::Variant& variant);

}  // namespace heddle_tests
