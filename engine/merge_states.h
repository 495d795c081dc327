// Merging partial states of attention: outputs o with their lse over disjoint sets of keys (parts of a
// sequence on several devices, a shared prefix, chunks of a prefill) become the output and lse over all
// of them, exactly: state(I u J) = state(I) + state(J).
//
//   M = max lse_s, w_s = exp(lse_s - M): o = sum(w_s o_s) / sum(w_s), lse = M + log(sum(w_s))
//
// An empty state has lse = -inf and weighs nothing, whatever its o holds, NaN included; +inf, as some
// libraries give for a row without keys, means the same. Where all are empty o = 0 and lse = -inf.
// One state that is not empty comes back bit for bit. Sums are f32, in the order of the states.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace heddle {

struct MergeConfig {
  int head_dim = 0;                  // a multiple of 8
  DType state_dtype = DType::f32;    // of the states' o: bf16, f16 or f32
  DType o_dtype = DType::bf16;       // of the result's o: the same
};

// Device arrays; host arrays on the CPU device. Any strides that are multiples of 16 bytes.
struct PartialState {
  Tensor o;    // [num_rows, num_heads, head_dim]
  Tensor lse;  // [num_rows, num_heads] f32, natural log. Of the result: leave data null if not wanted
};

// The n states of one array each: o [n, num_rows, num_heads, head_dim], lse [n, num_rows, num_heads].
// Throws where the ranks are others or the two disagree about n.
std::vector<PartialState> unstack_states(const Tensor& o, const Tensor& lse);

// A kernel for one MergeConfig, made by Engine::merge_states(); a handle that is cheap to copy. May be
// used from several threads.
class MergeStates {
 public:
  static constexpr int kMaxStates = 64;  // of one call; more merge in turns, in f32

  // One launch, which a graph may capture: shapes, strides and the number of states are then fixed.
  // `result` may be one of the states, with the same strides, where state_dtype and o_dtype are equal.
  // Throws Error(invalid_argument) with the name of what does not fit ("states[2].o", "result.lse").
  void run(std::span<const PartialState> states, const PartialState& result, Stream stream = nullptr) const;

  const MergeConfig& config() const;
  KernelInfo kernel() const;

 private:
  friend class Engine;
  std::shared_ptr<const detail::MergeState> state_;
};

}  // namespace heddle
