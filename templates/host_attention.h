// The CPU device: the same work list, run by plain loops in f32.
//
// Items run one after the other in the order of their CTAs; partial states wait in the workspace and
// are merged in slot order by the last piece, as on the GPU. It is a test bed and a place to put a
// breakpoint into a hook, not a fast path. Kept apart from the double-precision reference
// (variants/reference_attention.h), which knows neither tiles nor partial states.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "templates/abi.h"
#include "templates/hook_context.h"
#include "templates/tensor_view.h"

namespace heddle {

inline float host_read(const void* base, int64_t index, DType dtype) {
  if (dtype == DType::bf16) return read_element(static_cast<const Bf16Bits*>(base)[index]);
  return read_element(static_cast<const F16Bits*>(base)[index]);
}

// Round to nearest even, as the GPU's cvt.rn does.
inline uint16_t host_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline uint16_t host_f16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::fabs(x);
  if (x != x) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00u;
  if (magnitude < 6.103515625e-05f)  // subnormal: units of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0f));
  const uint32_t rest = bits & 0x7fffffffu;
  return sign | static_cast<uint16_t>((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13);
}
inline void host_write(void* base, int64_t index, DType dtype, float x) {
  static_cast<uint16_t*>(base)[index] = dtype == DType::bf16 ? host_bf16(x) : host_f16(x);
}
inline float host_round(DType dtype, float x) {
  uint16_t bits;
  host_write(&bits, 0, dtype, x);
  return host_read(&bits, 0, dtype);
}

// A row as its transform sees it: `transform(x, pair, dim)` is called for each element.
template <class Transform>
void host_read_row(const void* base, int64_t offset, DType dtype, int head_dim, const RowInput& input,
                   std::vector<float>& to, const Transform& transform) {
  float scale = 1;
  if (input.rms_eps >= 0) {
    float sum = 0;
    for (int d = 0; d < head_dim; ++d) {
      const float x = host_read(base, offset + d, dtype);
      sum += x * x;
    }
    scale = 1 / std::sqrt(sum / head_dim + input.rms_eps);
  }
  for (int d = 0; d < head_dim; ++d) {
    const float x = host_read(base, offset + d, dtype) * scale;
    const int partner = partner_of(input, d, head_dim);
    to[d] = transform(x, input.pair == kNoPair ? 0.0f : host_read(base, offset + partner, dtype) * scale, d);
  }
}

inline bool host_keeps(const MaskBounds& mask, int64_t q_pos, int64_t kv_pos) {
  if (mask.causal && kv_pos > q_pos) return false;
  const bool left = mask.window_left == kUnbounded || q_pos - kv_pos <= mask.window_left;
  const bool right = mask.window_right == kUnbounded || kv_pos - q_pos <= mask.window_right;
  return (left && right) || kv_pos < mask.sink;
}

template <class Hooks>
class HostAttention {
 public:
  HostAttention(const AttentionParams& params, const Hooks& hooks, Pipeline pipeline)
      : p_(params), hooks_(hooks), header_(*at<PlanHeader>(0)), section_(header_.section[static_cast<int>(pipeline)]), pipeline_(pipeline) {}

  void run() {
    const auto* items = at<WorkItem>(section_.items_offset);
    for (int i = 0; i < section_.num_items; ++i)
      for (int head = items[i].kv_head_begin; head < items[i].kv_head_end; ++head)
        for (int row = 0; row < items[i].num_rows; ++row) run_row(items[i], head, row);
  }

 private:
  // Without softmax, max and sum only say whether a key was kept: 0 and 1, and so an lse of 0.
  struct State {
    float max = -std::numeric_limits<float>::infinity();
    float sum = 0;
    std::vector<float> o;
  };

  template <class Record>
  const Record* at(int64_t offset) const {
    return reinterpret_cast<const Record*>(p_.plan + offset);
  }

  HookContext context_of(const WorkItem& item, int row, int kv_head) const {
    const int packed = item.row_begin + row, token = packed / p_.group;
    return {item.request,           kv_head * p_.group + packed % p_.group,
            kv_head,                item.kv_len - item.qo_len + token, -1,
            item.qo_begin + token,  item.qo_len,                       item.kv_len};
  }

  int64_t kv_row(const WorkItem& r, int kv_pos, int64_t page_stride, int64_t row_stride) const {
    if (p_.page_size == 0) return (r.kv_offset + kv_pos) * row_stride;
    const int64_t page = p_.kv_indices[r.kv_offset + kv_pos / p_.page_size];
    return page * page_stride + kv_pos % p_.page_size * row_stride;
  }

  void read_q(const HookContext& c, std::vector<float>& q) const {
    host_read_row(p_.q, c.q_row * p_.q_row_stride + c.qo_head * p_.q_head_stride, p_.q_dtype, p_.head_dim, Hooks::query_pair,
                  q, [&](float x, float pair, int d) -> float {
                    if constexpr (Hooks::has_query_transform)
                      return host_round(p_.q_dtype, hooks_.query_transform(x, pair, d, c));
                    return (void)pair, (void)d, x;
                  });
  }
  void read_k(const WorkItem& r, const HookContext& c, std::vector<float>& k) const {
    const int64_t offset = kv_row(r, c.kv_pos, p_.k_page_stride, p_.k_row_stride) + c.kv_head * p_.k_head_stride;
    const RowInput input = p_.kv_is_transformed ? RowInput{} : Hooks::key_pair;
    host_read_row(p_.k, offset, p_.kv_dtype, p_.head_dim, input, k, [&](float x, float pair, int d) -> float {
      if constexpr (Hooks::has_key_transform)
        if (!p_.kv_is_transformed) return host_round(p_.kv_dtype, hooks_.key_transform(x, pair, d, c));
      return (void)pair, (void)d, x;
    });
  }
  void read_v(const WorkItem& r, const HookContext& c, std::vector<float>& v) const {
    const int64_t offset = kv_row(r, c.kv_pos, p_.v_page_stride, p_.v_row_stride) + c.kv_head * p_.v_head_stride;
    const RowInput input = p_.kv_is_transformed ? RowInput{} : Hooks::value_pair;
    host_read_row(p_.v, offset, p_.kv_dtype, p_.head_dim_vo, input, v, [&](float x, float pair, int d) -> float {
      if constexpr (Hooks::has_value_transform)
        if (!p_.kv_is_transformed) return host_round(p_.kv_dtype, hooks_.value_transform(x, pair, d, c));
      return (void)pair, (void)d, x;
    });
  }

  void run_row(const WorkItem& item, int kv_head, int row) const {
    HookContext c = context_of(item, row, kv_head);
    HookContext kv = key_context(item.request, item.qo_len, item.kv_len, -1, kv_head, p_.group);
    std::vector<float> q(p_.head_dim), k(p_.head_dim), v(p_.head_dim_vo);
    read_q(c, q);
    State state;
    state.o.assign(p_.head_dim_vo, 0.0f);
    const RowKeys* given = header_.row_keys_offset != 0 ? at<RowKeys>(header_.row_keys_offset) + c.q_row : nullptr;
    for (int t = item.tile_begin; t < item.tile_end; ++t) {
      const int64_t start = int64_t(t >= item.gap_begin ? t + item.gap_tiles : t) * p_.tile_kv;
      for (int64_t kv_pos = start; kv_pos < start + p_.tile_kv && kv_pos < item.kv_len; ++kv_pos) {
        if (!host_keeps(header_.mask, c.q_pos, kv_pos)) continue;
        if (given != nullptr && (kv_pos < given->begin || kv_pos >= given->end)) continue;
        kv.kv_pos = static_cast<int>(kv_pos);
        c.move_to_key(kv.kv_pos);
        read_k(item, kv, k);
        float logit = 0;
        for (int d = 0; d < p_.head_dim; ++d) logit += q[d] * k[d];
        logit *= p_.sm_scale;
        if constexpr (Hooks::has_logits_transform) logit = hooks_.logits_transform(logit, c);
        if constexpr (Hooks::has_logits_mask)
          if (!hooks_.logits_mask(logit, c)) continue;
        read_v(item, kv, v);
        add_key(state, logit, v.data());
      }
    }
    c.kv_pos = -1;
    if (item.join > 0) join(state, item, row);
    const int64_t state_row = int64_t(c.q_row) - header_.prefix_row_begin;
    const int64_t prefix_row = (state_row * p_.num_kv_heads * p_.group + c.qo_head) * header_.prefix_states;
    if (item.partial >= 0 && item.join == 0) {
      write_state(p_.partial_o, p_.partial_lse, int64_t(item.partial) * p_.tile_rows + row, state);
    } else if (item.request < 0) {
      write_state(p_.prefix_o, p_.prefix_lse, prefix_row + prefix_state(item), state);
    } else {
      for (int i = 0; i < item.prefix_states; ++i) take_prefix(state, prefix_row + i);
      write_row(c, state);
    }
  }

  // One key of value v; a state that was kept counts as one, of its lse and normalised o.
  void add_key(State& state, float logit, const float* v) const {
    float weight = logit;
    if constexpr (Hooks::use_softmax) {
      const float max = logit > state.max || logit != logit ? logit : state.max;
      if (max == -std::numeric_limits<float>::infinity()) return;
      const float rescale = std::exp(state.max - max);
      weight = std::exp(logit - max);
      state.max = max;
      state.sum = state.sum * rescale + weight;
      for (float& o : state.o) o *= rescale;
    } else {
      state.max = 0, state.sum = 1;
    }
    for (int d = 0; d < p_.head_dim_vo; ++d) state.o[d] += weight * v[d];
  }

  void write_row(const HookContext& c, const State& state) const {
    float scale = 1;
    float lse = state.sum == 0 ? -std::numeric_limits<float>::infinity() : state.max + std::log(state.sum);
    if constexpr (Hooks::use_softmax) {
      scale = state.sum == 0 ? 0 : 1 / state.sum;
      if constexpr (Hooks::has_initial_state) {
        const float sink = hooks_.initial_state(c);
        const float top = lse > sink ? lse : sink;
        if (top != -std::numeric_limits<float>::infinity()) {
          const float with_sink = top + std::log(std::exp(lse - top) + std::exp(sink - top));
          scale *= std::exp(lse - with_sink);
          lse = with_sink;
        }
      }
    }
    const int64_t offset = c.q_row * p_.o_row_stride + c.qo_head * p_.o_head_stride;
    for (int d = 0; d < p_.head_dim_vo; ++d) {
      float x = state.o[d] * scale;
      if constexpr (Hooks::has_output_transform)
        if (lse != -std::numeric_limits<float>::infinity()) x = hooks_.output_transform(x, d, c);
      host_write(p_.o, offset + d, p_.q_dtype, x);
    }
    if (Hooks::use_softmax && p_.lse) p_.lse[c.q_row * p_.lse_row_stride + c.qo_head * p_.lse_head_stride] = lse;
  }

  // Slots as on the GPU: o normalised, lse in the log2 domain.
  void write_state(float* to_o, float* to_lse, int64_t row, const State& state) const {
    const float scale = !Hooks::use_softmax ? 1.0f : state.sum == 0 ? 0.0f : 1 / state.sum;
    for (int d = 0; d < p_.head_dim_vo; ++d) to_o[row * p_.head_dim_vo + d] = state.o[d] * scale;
    to_lse[row] = state.sum == 0 ? -std::numeric_limits<float>::infinity()
                                 : (state.max + std::log(state.sum)) * 1.4426950408889634f;
  }

  void join(State& state, const WorkItem& item, int row) const {
    for (int slot = item.partial; slot < item.partial + item.join; ++slot)
      add_state(state, p_.partial_o, p_.partial_lse, int64_t(slot) * p_.tile_rows + row);
  }

  // One of those of the row's shared prefixes, which is then gone.
  void take_prefix(State& state, int64_t row) const {
    add_state(state, p_.prefix_o, p_.prefix_lse, row);
    std::memset(p_.prefix_o + row * p_.head_dim_vo, 0xff, sizeof(float) * p_.head_dim_vo);
    std::memset(p_.prefix_lse + row, 0xff, sizeof(float));
  }

  void add_state(State& state, const float* from_o, const float* from_lse, int64_t row) const {
    const float lse = from_lse[row] * 0.6931471805599453f;
    if (lse == -std::numeric_limits<float>::infinity()) return;
    add_key(state, Hooks::use_softmax ? lse : 1.0f, from_o + row * p_.head_dim_vo);
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const PlanHeader& header_;
  const PlanSection& section_;
  const Pipeline pipeline_;
};

}  // namespace heddle
