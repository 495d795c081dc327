// What the cases of tests/cases.json share: problems on any engine, whose finding is a sentence
// (empty: nothing is wrong), and tensors laid out anew.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/problem.h"

namespace heddle_tests {

using Found = std::string;

// An Attention, a problem and a workspace for it.
struct CaseRun {
  CaseRun(heddle::Engine& engine, const heddle::AttentionConfig& config, const ProblemShape& shape,
          std::uint64_t seed = 1);
  CaseRun(heddle::Engine& engine, const ProblemShape& shape, std::uint64_t seed = 1)
      : CaseRun(engine, shape.config, shape, seed) {}

  void plan();
  void run(const heddle::Tensors& tensors);
  // Plans, runs and judges.
  Found judge();
  // The output of the problem's rows, [row, head, ...]; of lse, [row, head].
  std::vector<double> o() const;
  std::vector<double> lse() const;
  // Whether some stream was cut, so that a merge was at work.
  bool is_cut() const;

  heddle::Engine& engine;
  heddle::Attention attention;
  Problem problem;
  heddle::Workspace workspace;
};

// One problem after the other, until something is wrong.
Found judge_all(heddle::Engine& engine, const std::vector<ProblemShape>& shapes);

// Elements of a tensor in the order of its axes, as they are stored.
std::vector<std::byte> elements_of(const heddle::Engine& engine, const heddle::Tensor& tensor);

// The same elements under other strides, `lead` elements behind the start of their memory. On the
// CPU device memory between them is never touched and costs nothing, whatever the strides are.
class Relaid {
 public:
  Relaid(const heddle::Engine& engine, const heddle::Tensor& source,
         const std::vector<std::int64_t>& strides, std::int64_t lead = 0);
  // All axes but the last as far apart as they are wide.
  static std::vector<std::int64_t> tight(const heddle::Tensor& source);

  const heddle::Tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<void> memory_;
  heddle::Tensor tensor_;
};

// Runs the problem as it lies, then with what `relay` makes of its tensors: the bits of o and lse
// must be the same. (`relay` is kept alive with what it captured; it is called once.)
Found same_bits(CaseRun& run, const std::function<void(heddle::Tensors&)>& relay);

inline heddle::AttentionConfig shape_of(std::string variant, int qo_heads, int kv_heads,
                                        int head_dim, int page_size) {
  return {.variant = std::move(variant),
          .num_qo_heads = qo_heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .page_size = page_size};
}

}  // namespace heddle_tests
