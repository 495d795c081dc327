#include "engine/check_tensors.h"

#include <cstdint>

#include "planner/plan_view.h"

namespace heddle::detail {
namespace {

constexpr std::uintptr_t kAlignment = 16;  // bytes that one copy instruction moves

void check_array(const char* name, const Tensor& t, DType dtype, int rank) {
  if (!t.data) fail(ErrorKind::invalid_argument, "Tensor {} has no data.", name);
  if (t.dtype != dtype)
    fail(ErrorKind::invalid_argument, "Tensor {} holds {}; this Attention was made for {}.", name, name_of(t.dtype),
         name_of(dtype));
  if (t.rank != rank) fail(ErrorKind::invalid_argument, "Tensor {} has {} axes; it needs {}.", name, t.rank, rank);
  for (int axis = 0; axis < rank; ++axis)
    if (t.shape[axis] < 0)
      fail(ErrorKind::invalid_argument, "Tensor {} has {} elements on axis {}; that cannot be negative.", name,
           t.shape[axis], axis);
}

}  // namespace

void check_rows(const char* name, const Tensor& t, DType dtype, int rank) {
  check_array(name, t, dtype, rank);
  if (reinterpret_cast<std::uintptr_t>(t.data) % kAlignment != 0)
    fail(ErrorKind::invalid_argument, "Tensor {} starts at {}, which is not a multiple of {} bytes.", name, t.data,
         kAlignment);
  if (t.shape[rank - 1] > 1 && t.strides[rank - 1] != 1)
    fail(ErrorKind::invalid_argument, "Tensor {} has stride {} on its last axis; rows must be contiguous (stride 1).",
         name, t.strides[rank - 1]);
  const int per_chunk = static_cast<int>(kAlignment) / bytes_of(dtype);  // a power of two: no division below
  for (int axis = 0; axis + 1 < rank; ++axis)
    if (t.shape[axis] > 1 && (t.strides[axis] & (per_chunk - 1)) != 0)
      fail(ErrorKind::invalid_argument,
           "Tensor {} has stride {} on axis {}; strides must be multiples of {} elements ({} bytes).", name,
           t.strides[axis], axis, per_chunk, kAlignment);
}

void check_size(const char* name, const char* axis, std::int64_t found, std::int64_t wanted, bool at_least) {
  if (at_least ? found >= wanted : found == wanted) return;
  fail(ErrorKind::invalid_argument, "Tensor {} has {} = {}; it needs {}{}.", name, axis, found,
       at_least ? "at least " : "", wanted);
}

void check_written(const char* name, const Tensor& t, const char* why) {
  for (int axis = 0; axis < t.rank; ++axis)
    if (t.shape[axis] > 1 && t.strides[axis] == 0)
      fail(ErrorKind::invalid_argument, "Tensor {} has stride 0 on axis {}; {}.", name, axis, why);
}

void check_lse(const char* name, const Tensor& t) {
  check_array(name, t, DType::f32, 2);
  if (reinterpret_cast<std::uintptr_t>(t.data) % sizeof(float) != 0)
    fail(ErrorKind::invalid_argument, "Tensor {} starts at {}, which is not a multiple of 4 bytes.", name, t.data);
}

namespace {

// The last axis of q and k or, `is_vo`, of v and o.
void check_row(const char* name, const Tensor& t, const AttentionConfig& c, bool is_vo) {
  const bool apart = is_vo && c.vo_dim() != c.head_dim;
  check_size(name, apart ? "head_dim_vo" : "head_dim", t.shape[t.rank - 1], apart ? c.vo_dim() : c.head_dim);
}

struct KvStrides {
  std::int64_t page, row, head;
};

KvStrides check_kv(const char* name, bool is_v, const Tensor& t, const AttentionState& a, const WorkspaceState& ws,
                   KvLayout layout) {
  const AttentionConfig& c = a.config;
  if (c.page_size == 0) {
    if (layout != KvLayout::NHD)
      fail(ErrorKind::invalid_argument,
           "layout HND was given, but this Attention was made for ragged K/V (page_size 0), which has rows in front of "
           "heads; leave it at NHD.");
    check_rows(name, t, c.kv_dtype, 3);
    check_size(name, "rows", t.shape[0], ws.summary.num_kv_rows, true);
    check_size(name, "num_kv_heads", t.shape[1], c.num_kv_heads);
    check_row(name, t, c, is_v);
    return {0, t.strides[0], t.strides[1]};
  }
  check_rows(name, t, c.kv_dtype, 4);
  const int row_axis = layout == KvLayout::NHD ? 1 : 2, head_axis = 3 - row_axis;
  check_size(name, "page_size", t.shape[row_axis], c.page_size);
  check_size(name, "num_kv_heads", t.shape[head_axis], c.num_kv_heads);
  check_row(name, t, c, is_v);
  return {t.strides[0], t.strides[row_axis], t.strides[head_axis]};
}

void check_qo(const AttentionState& a, const WorkspaceState& ws, const Tensors& tensors) {
  for (const auto& [name, t] : {std::pair{"q", &tensors.q}, std::pair{"o", &tensors.o}}) {
    check_rows(name, *t, a.config.q_dtype, 3);
    check_size(name, "rows", t->shape[0], ws.summary.num_qo_rows, true);
    check_size(name, "num_qo_heads", t->shape[1], a.config.num_qo_heads);
    check_row(name, *t, a.config, t == &tensors.o);
  }
  check_written("o", tensors.o, "its rows would overwrite each other");
  if (!tensors.lse.data) return;
  if (!a.variant.use_softmax)
    fail(ErrorKind::invalid_argument, "Variant {} has no softmax, so it has no lse to write; leave lse out.",
         a.variant.name);
  check_lse("lse", tensors.lse);
  check_size("lse", "rows", tensors.lse.shape[0], ws.summary.num_qo_rows, true);
  check_size("lse", "num_qo_heads", tensors.lse.shape[1], a.config.num_qo_heads);
  check_written("lse", tensors.lse, "its rows would overwrite each other");
}

void check_indices(const AttentionState& a, const WorkspaceState& ws, const std::int32_t* kv_indices) {
  if (a.config.page_size != 0 && !kv_indices && ws.summary.num_indices > 0)
    fail(ErrorKind::invalid_argument, "The plan reaches {} page ids, but kv_indices was not given.", ws.summary.num_indices);
  if (a.config.page_size == 0 && kv_indices)
    fail(ErrorKind::invalid_argument, "kv_indices was given, but this Attention was made for ragged K/V (page_size 0).");
  if (reinterpret_cast<std::uintptr_t>(kv_indices) % 4 != 0)
    fail(ErrorKind::invalid_argument, "kv_indices starts at {}, which is not a multiple of 4 bytes.",
         static_cast<const void*>(kv_indices));
}

// First byte and the one behind the last of the elements that a tensor reaches; equal where it has none.
std::pair<std::uintptr_t, std::uintptr_t> reach(const Tensor& t) {
  std::int64_t low = 0, high = 0;
  for (int axis = 0; axis < t.rank; ++axis) {
    if (t.shape[axis] == 0) return {};
    const std::int64_t last = (t.shape[axis] - 1) * t.strides[axis];
    (last < 0 ? low : high) += last;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
  return {begin + low * bytes_of(t.dtype), begin + (high + 1) * bytes_of(t.dtype)};
}

// Rows turned where they lie would be turned once more by every replay of a graph.
void check_apart(const AppendTensors& tensors) {
  for (const auto& [name, rows] : {std::pair{"new_k", &tensors.new_k}, std::pair{"new_v", &tensors.new_v}}) {
    for (const auto& [pool_name, pool] : {std::pair{"k", &tensors.k}, std::pair{"v", &tensors.v}}) {
      const auto [begin, end] = reach(*rows);
      const auto [pool_begin, pool_end] = reach(*pool);
      if (begin < pool_end && pool_begin < end)
        fail(ErrorKind::invalid_argument,
             "Tensor {} lies within the memory that tensor {} reaches; append_kv reads the one and writes the other, so they "
             "must lie apart.",
             name, pool_name);
    }
  }
}

AppendKvParams::Side check_side(const AttentionState& a, const WorkspaceState& ws, const AppendTensors& tensors, bool is_k) {
  const char *name = is_k ? "k" : "v", *new_name = is_k ? "new_k" : "new_v";
  const Tensor &rows = is_k ? tensors.new_k : tensors.new_v, &to = is_k ? tensors.k : tensors.v;
  check_rows(new_name, rows, a.config.kv_dtype, 3);
  check_size(new_name, "rows", rows.shape[0], ws.summary.num_qo_rows, true);
  check_size(new_name, "num_kv_heads", rows.shape[1], a.config.num_kv_heads);
  check_row(new_name, rows, a.config, !is_k);
  const KvStrides strides = check_kv(name, !is_k, to, a, ws, tensors.layout);
  check_written(name, to, "append_kv writes there, so it must not be 0");
  return {rows.data, to.data, rows.strides[0], rows.strides[1], strides.page, strides.row, strides.head};
}

}  // namespace

AppendKvParams checked_params(const AttentionState& a, const WorkspaceState& ws, const AppendTensors& tensors) {
  AppendKvParams p{};
  p.k = check_side(a, ws, tensors, true);
  p.v = check_side(a, ws, tensors, false);
  check_apart(tensors);
  check_indices(a, ws, tensors.kv_indices);
  p.kv_indices = tensors.kv_indices;
  p.num_kv_heads = a.config.num_kv_heads;
  p.group = a.plan.group;
  p.head_dim = a.config.head_dim;
  p.head_dim_vo = a.config.vo_dim();
  p.page_size = a.config.page_size;
  p.kv_dtype = a.config.kv_dtype;
  p.transforms = a.config.append_kv == AppendKv::transform;
  return p;
}

void check_new_rows(std::span<const std::byte> plan) {
  const std::span<const RequestRecord> requests = PlanView(plan).requests();
  for (std::size_t r = 0; r < requests.size(); ++r)
    if (requests[r].qo_len > requests[r].kv_len)
      fail(ErrorKind::invalid_argument,
           "Request {} has qo_len {} and kv_len {}; this Attention appends, and a request's kv_len counts its qo_len new "
           "keys.",
           r, requests[r].qo_len, requests[r].kv_len);
}

AttentionParams checked_params(const AttentionState& a, const WorkspaceState& ws, const Tensors& tensors) {
  check_qo(a, ws, tensors);
  const KvStrides k = check_kv("k", false, tensors.k, a, ws, tensors.layout);
  const KvStrides v = check_kv("v", true, tensors.v, a, ws, tensors.layout);
  check_indices(a, ws, tensors.kv_indices);
  AttentionParams p{};
  p.q = tensors.q.data;
  p.k = tensors.k.data;
  p.v = tensors.v.data;
  p.o = tensors.o.data;
  p.lse = static_cast<float*>(tensors.lse.data);
  p.kv_indices = tensors.kv_indices;
  p.q_row_stride = tensors.q.strides[0], p.q_head_stride = tensors.q.strides[1];
  p.o_row_stride = tensors.o.strides[0], p.o_head_stride = tensors.o.strides[1];
  p.lse_row_stride = tensors.lse.strides[0], p.lse_head_stride = tensors.lse.strides[1];
  p.k_page_stride = k.page, p.k_row_stride = k.row, p.k_head_stride = k.head;
  p.v_page_stride = v.page, p.v_row_stride = v.row, p.v_head_stride = v.head;
  p.sm_scale = a.sm_scale;
  p.num_kv_heads = a.config.num_kv_heads;
  p.group = a.plan.group;
  p.head_dim = a.config.head_dim;
  p.head_dim_vo = a.config.vo_dim();
  p.page_size = a.config.page_size;
  p.q_dtype = a.config.q_dtype;
  p.kv_dtype = a.config.kv_dtype;
  p.kv_is_transformed = a.config.append_kv == AppendKv::transform;
  return p;
}

void check_page_ids(const AttentionState& a, const WorkspaceState& ws, const std::int32_t* kv_indices,
                    std::int64_t num_pages, Stream stream) {
  if (a.config.page_size == 0) return;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(ws.summary.num_indices));
  if (a.engine->on_gpu()) {
    if (is_capturing(stream))
      fail(ErrorKind::invalid_argument, "check_pages reads kv_indices back, which a stream capture forbids.");
    synchronize(stream);
    copy_to_host(ids.data(), kv_indices, ids.size() * sizeof ids[0]);
  } else {
    ids.assign(kv_indices, kv_indices + ids.size());
  }
  const PlanView view(ws.ring.current());
  for (std::size_t r = 0; r < view.requests().size(); ++r) {
    const RequestRecord& request = view.requests()[r];
    for (std::int64_t i = 0; i * a.config.page_size < request.kv_len; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(request.kv_offset + i)];
      if (id < 0 || id >= num_pages)
        fail(ErrorKind::invalid_argument, "Request {} names page {} as its page {}; the pool has pages 0 to {}.", r, id,
             i, num_pages - 1);
    }
  }
}

}  // namespace heddle::detail
