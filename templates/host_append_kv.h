// append_kv on the CPU device: the same items, a row after the other.
#pragma once

#include "templates/append_rows.h"
#include "templates/host_attention.h"

namespace heddle {

template <class Hooks>
class HostAppendKv {
 public:
  HostAppendKv(const AppendKvParams& params, const Hooks& hooks) : p_(params), hooks_(hooks) {}

  void run() {
    for (const PlanSection& section : reinterpret_cast<const PlanHeader*>(p_.plan)->section) {
      const auto* items = reinterpret_cast<const WorkItem*>(p_.plan + section.items_offset);
      for (int i = 0; i < section.num_items; ++i) {
        const NewRows rows = new_rows(items[i], p_.group);
        for (int row = rows.begin; row < rows.end; ++row)
          for (int head = items[i].kv_head_begin; head < items[i].kv_head_end; ++head) store(items[i], row, head);
      }
    }
  }

 private:
  void store(const WorkItem& item, int row, int kv_head) {
    const HookContext c = append_context(item, row, kv_head, p_.group);
    const auto key = [&](float x, float pair, int d) -> float {
      if constexpr (Hooks::has_key_transform) return hooks_.key_transform(x, pair, d, c);
      return (void)pair, (void)d, x;
    };
    const auto value = [&](float x, float pair, int d) -> float {
      if constexpr (Hooks::has_value_transform) return hooks_.value_transform(x, pair, d, c);
      return (void)pair, (void)d, x;
    };
    store_side(p_.k, p_.head_dim, item, row, c, Hooks::has_key_transform, Hooks::key_pair, key);
    store_side(p_.v, p_.head_dim_vo, item, row, c, Hooks::has_value_transform, Hooks::value_pair, value);
  }

  template <class Transform>
  void store_side(const AppendKvParams::Side& side, int head_dim, const WorkItem& item, int row, const HookContext& c,
                  bool has_transform, const RowInput& input, const Transform& transform) {
    const int64_t from = (item.qo_begin + int64_t(row)) * side.from_row_stride + c.kv_head * side.from_head_stride;
    const int64_t to = place(side, item, c.kv_pos) + c.kv_head * side.head_stride;
    if (!p_.transforms || !has_transform) {
      // Bits, not values: a NaN stays the one that it is.
      std::memcpy(static_cast<uint16_t*>(side.to) + to, static_cast<const uint16_t*>(side.from) + from, head_dim * 2);
      return;
    }
    row_.resize(head_dim);
    host_read_row(side.from, from, p_.kv_dtype, head_dim, input, row_, transform);
    for (int d = 0; d < head_dim; ++d) host_write(side.to, to + d, p_.kv_dtype, row_[d]);
  }

  int64_t place(const AppendKvParams::Side& side, const WorkItem& item, int kv_pos) const {
    if (p_.page_size == 0) return (item.kv_offset + kv_pos) * side.row_stride;
    const int64_t page = p_.kv_indices[item.kv_offset + kv_pos / p_.page_size];
    return page * side.page_stride + kv_pos % p_.page_size * side.row_stride;
  }

  const AppendKvParams& p_;
  const Hooks& hooks_;
  std::vector<float> row_;
};

}  // namespace heddle
