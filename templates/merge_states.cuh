// merge_states: n states over disjoint sets of keys become the state over their union.
//
//   M = max lse_s, w_s = e^(lse_s - M): o = sum(w_s o_s) / sum(w_s), lse = M + ln(sum w_s)
//   Online softmax, Milakov and Gimelshein, arXiv:1805.02867; the order is that of the states.
//
// Lanes of one warp share a (row, head), eight columns each, and look at the n lse by themselves: n
// words that all of them read at once. An empty state (lse -inf, or +inf as some libraries say it)
// weighs nothing, whatever its o holds: its o is loaded and not used, since loads behind a branch
// would be waited for one by one.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

inline constexpr int kMergeColumns = 8;  // of a lane

// Eight columns as f32, and back.
template <DType kType>
struct MergeElements {
  static HEDDLE_DEVICE void load(const void* o, int64_t element, float (&x)[kMergeColumns]) {
    const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(o) + element);
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < kMergeColumns / 2; ++i) {
      x[2 * i] = Element<kType>::to_float(static_cast<uint16_t>(words[i]));
      x[2 * i + 1] = Element<kType>::to_float(static_cast<uint16_t>(words[i] >> 16));
    }
  }
  static HEDDLE_DEVICE void store(void* o, int64_t element, const float (&x)[kMergeColumns]) {
    using T = Element<kType>;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(o) + element) = {T::pack(x[0], x[1]), T::pack(x[2], x[3]),
                                                                      T::pack(x[4], x[5]), T::pack(x[6], x[7])};
  }
};
template <>
struct MergeElements<DType::f32> {
  static HEDDLE_DEVICE void load(const void* o, int64_t element, float (&x)[kMergeColumns]) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(o) + element);
    const float4 a = from[0], b = from[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  }
  static HEDDLE_DEVICE void store(void* o, int64_t element, const float (&x)[kMergeColumns]) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(o) + element);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
  }
};

// Lanes of a row with that many groups of columns: a power of two, some idle where there are fewer groups.
HEDDLE_DEVICE constexpr int merge_lanes(int groups) {
  int lanes = 1;
  while (lanes < groups && lanes < kWarpSize) lanes *= 2;
  return lanes;
}

template <class Spec>
class MergeStates {
  static constexpr int kGroups = Spec::kHeadDim / kMergeColumns;  // of columns
  static constexpr int kLanes = merge_lanes(kGroups);

 public:
  HEDDLE_DEVICE explicit MergeStates(const MergeStatesParams& params) : p_(params) {}

  HEDDLE_DEVICE void run() {
    release_successor();
    wait_for_predecessor();
    const int64_t count = p_.num_rows * p_.num_heads, step = int64_t(gridDim.x) * (blockDim.x / kLanes);
    // All lanes of a warp stay together: merge() has a warp barrier.
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + warp_index() * kWarpSize) / kLanes;
#pragma unroll 1
    for (int64_t i = first; i < count; i += step) merge(i + lane_index() / kLanes, count);
  }

 private:
  static HEDDLE_DEVICE bool is_empty_state(float lse) { return fabsf(lse) == -negative_infinity(); }

  HEDDLE_DEVICE void merge(int64_t index, int64_t count) const {
    const bool active = index < count;
    const int64_t row = active ? index / p_.num_heads : 0;
    const int64_t head = active ? index - row * p_.num_heads : 0;
    float max = negative_infinity(), sum = 0.0f;
    for (int s = 0; s < p_.num_states; ++s) {
      const float lse = lse_of(s, row, head);
      if (!is_empty_state(lse)) max = fmaxf(max, lse);
    }
    for (int s = 0; s < p_.num_states; ++s) sum += weight_of(s, row, head, max);
#pragma unroll 1
    for (int group = lane_index() % kLanes; group < kGroups; group += kLanes)
      if (active) merge_columns(row, head, group * kMergeColumns, max, sum);
    // The result's lse may be one of those that the other lanes have been reading.
    __syncwarp();
    if (active && p_.lse && lane_index() % kLanes == 0)
      p_.lse[row * p_.lse_row_stride + head * p_.lse_head_stride] =
          sum == 0.0f ? negative_infinity() : max + __log2f(sum) * kLn2;
  }

  HEDDLE_DEVICE void merge_columns(int64_t row, int64_t head, int column, float max, float sum) const {
    float o[kMergeColumns] = {};
#pragma unroll 4
    for (int s = 0; s < p_.num_states; ++s) {
      const MergeStatesParams::State& state = p_.states[s];
      float x[kMergeColumns];
      MergeElements<Spec::kStateType>::load(state.o, row * state.o_row_stride + head * state.o_head_stride + column, x);
      const float weight = weight_of(s, row, head, max);
#pragma unroll
      for (int e = 0; e < kMergeColumns; ++e) o[e] = weight == 0.0f ? o[e] : o[e] + weight * x[e];
    }
    const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int e = 0; e < kMergeColumns; ++e) o[e] = o[e] * scale;
    MergeElements<Spec::kOutputType>::store(p_.o, row * p_.o_row_stride + head * p_.o_head_stride + column, o);
  }

  HEDDLE_DEVICE float lse_of(int s, int64_t row, int64_t head) const {
    const MergeStatesParams::State& state = p_.states[s];
    return state.lse[row * state.lse_row_stride + head * state.lse_head_stride];
  }
  HEDDLE_DEVICE float weight_of(int s, int64_t row, int64_t head, float max) const {
    const float lse = lse_of(s, row, head);
    return is_empty_state(lse) ? 0.0f : exp2_approx((lse - max) * kLog2e);
  }

  const MergeStatesParams& p_;
};

}  // namespace heddle
