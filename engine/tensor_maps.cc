#include "engine/tensor_maps.h"

#include <limits>

#include "engine/tiles.h"
#include "runtime/driver.h"

namespace heddle {
namespace {

struct Strides {  // elements
  std::int64_t page, row, head;
};

// The second of two axes may be a single one, whose stride then says nothing.
std::uint64_t stride_bytes(std::int64_t extent, std::int64_t stride) {
  return extent > 1 ? static_cast<std::uint64_t>(stride) * 2 : 16;
}

bool fits(std::int64_t extent) { return extent >= 1 && extent <= std::numeric_limits<std::int32_t>::max(); }

// K, V or transformed keys: pages of so many rows, or (page_size 0) as many rows one behind the other.
struct KvRows {
  const void* data;
  std::int64_t outer;
  int page_size;
  int head_dim;
  Strides stride;
};

// Where a box reaches past the rows (head_dim that is no multiple of 16), the engine fills in zeros.
bool encode_kv(TensorMaps::Map& map, const AttentionConfig& c, int box_rows, const KvRows& kv) {
  const int columns = block_columns(head_dims(c));
  const std::int64_t rows = kv.page_size == 0 ? kv.outer : kv.page_size;
  if (!fits(kv.outer)) return false;
  TensorMapShape shape{.base = kv.data, .bf16 = c.kv_dtype == DType::bf16, .rank = kv.page_size == 0 ? 3 : 4,
                       .swizzle_bytes = columns * 2};
  shape.extent = {static_cast<std::uint64_t>(kv.head_dim), static_cast<std::uint64_t>(c.num_kv_heads),
                  static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(kv.outer)};
  shape.stride_bytes = {0, stride_bytes(c.num_kv_heads, kv.stride.head), stride_bytes(rows, kv.stride.row),
                        stride_bytes(kv.outer, kv.stride.page)};
  shape.box = {static_cast<std::uint32_t>(columns), 1, static_cast<std::uint32_t>(box_rows), 1};
  return encode_tensor_map(map.words, shape);
}

// A box is a tile's tokens with the heads of one group: packed rows in their order.
bool encode_q(TensorMaps::Map& map, const AttentionConfig& c, const TileConfig& tile, const Tensor& t,
              const AttentionParams& p) {
  const int columns = block_columns(head_dims(c));
  if (!fits(t.shape[0])) return false;
  TensorMapShape shape{.base = t.data, .bf16 = c.q_dtype == DType::bf16, .rank = 3, .swizzle_bytes = columns * 2};
  shape.extent = {static_cast<std::uint64_t>(c.head_dim), static_cast<std::uint64_t>(c.num_qo_heads),
                  static_cast<std::uint64_t>(t.shape[0])};
  shape.stride_bytes = {0, stride_bytes(c.num_qo_heads, p.q_head_stride), stride_bytes(t.shape[0], p.q_row_stride)};
  shape.box = {static_cast<std::uint32_t>(columns), static_cast<std::uint32_t>(p.group),
               static_cast<std::uint32_t>(q_box_tokens(c, tile))};
  return encode_tensor_map(map.words, shape);
}

}  // namespace

TensorMaps tensor_maps(const AttentionConfig& config, const TileConfig& tile, const Tensors& tensors,
                       const AttentionParams& p) {
  TensorMaps maps{};
  if (q_box_tokens(config, tile) > 0) maps.q_usable = encode_q(maps.q, config, tile, tensors.q, p);
  if (const int rows = box_rows(config, tile); rows > 0)
    maps.kv_usable = encode_kv(maps.k, config, rows,
                               {tensors.k.data, tensors.k.shape[0], config.page_size, config.head_dim,
                                {p.k_page_stride, p.k_row_stride, p.k_head_stride}}) &&
                     encode_kv(maps.v, config, rows,
                               {tensors.v.data, tensors.v.shape[0], config.page_size, config.vo_dim(),
                                {p.v_page_stride, p.v_row_stride, p.v_head_stride}});
  return maps;
}

bool encode_transformed_map(TensorMaps::Map& map, const AttentionConfig& config, const TileConfig& tile,
                            const void* keys, std::int64_t rows) {
  const std::int64_t row = std::int64_t{config.num_kv_heads} * config.head_dim;
  return tile.q_buffers > 0 &&
         encode_kv(map, config, tile.kv, {keys, rows, 0, config.head_dim, {0, row, config.head_dim}});
}

}  // namespace heddle
