// merge_states on the CPU device: the formula of merge_states.cuh, a (row, head) after the other.
#pragma once

#include "templates/host_attention.h"

namespace heddle {

inline void host_merge_states(const MergeStatesParams& p) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto read = [](const void* base, int64_t i, DType dtype) {
    return dtype == DType::f32 ? static_cast<const float*>(base)[i] : host_read(base, i, dtype);
  };
  std::vector<float> weights(p.num_states), o(p.head_dim);
  for (int64_t row = 0; row < p.num_rows; ++row) {
    for (int64_t head = 0; head < p.num_heads; ++head) {
      float max = -kInfinity, sum = 0;
      const auto lse_of = [&](int s) {
        return p.states[s].lse[row * p.states[s].lse_row_stride + head * p.states[s].lse_head_stride];
      };
      for (int s = 0; s < p.num_states; ++s)
        if (!std::isinf(lse_of(s))) max = std::fmax(max, lse_of(s));
      for (int s = 0; s < p.num_states; ++s) sum += weights[s] = std::isinf(lse_of(s)) ? 0 : std::exp(lse_of(s) - max);
      o.assign(o.size(), 0.0f);
      for (int s = 0; s < p.num_states; ++s) {
        if (weights[s] == 0) continue;
        const int64_t offset = row * p.states[s].o_row_stride + head * p.states[s].o_head_stride;
        for (int d = 0; d < p.head_dim; ++d) o[d] += weights[s] * read(p.states[s].o, offset + d, p.state_dtype);
      }
      const int64_t offset = row * p.o_row_stride + head * p.o_head_stride;
      for (int d = 0; d < p.head_dim; ++d) {
        const float x = sum == 0 ? 0 : o[d] * (1 / sum);
        if (p.o_dtype == DType::f32)
          static_cast<float*>(p.o)[offset + d] = x;
        else
          host_write(p.o, offset + d, p.o_dtype, x);
      }
      if (p.lse) p.lse[row * p.lse_row_stride + head * p.lse_head_stride] = sum == 0 ? -kInfinity : max + std::log(sum);
    }
  }
}

}  // namespace heddle
