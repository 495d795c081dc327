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

// Where a box reaches past the rows (head_dim that is no multiple of 16), the engine fills in zeros.
bool encode_kv(TensorMaps::Map& map, const AttentionConfig& c, const TileConfig& tile, const Tensor& t, int head_dim,
               const Strides& s) {
  const int columns = block_columns(head_dims(c));
  const std::int64_t outer = t.shape[0], rows = c.page_size == 0 ? outer : c.page_size;
  if (!fits(outer)) return false;
  TensorMapShape shape{.base = t.data, .bf16 = c.kv_dtype == DType::bf16, .rank = c.page_size == 0 ? 3 : 4,
                       .swizzle_bytes = columns * 2};
  shape.extent = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(c.num_kv_heads),
                  static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(outer)};
  shape.stride_bytes = {0, stride_bytes(c.num_kv_heads, s.head), stride_bytes(rows, s.row), stride_bytes(outer, s.page)};
  shape.box = {static_cast<std::uint32_t>(columns), 1, static_cast<std::uint32_t>(box_rows(c, tile)), 1};
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

// Keys that are transformed ahead stand row by row, whatever the pages are; a box is a whole tile's.
bool encode_transformed(TensorMaps::Map& map, const AttentionConfig& c, const TileConfig& tile, void* keys,
                        std::int64_t rows) {
  const int columns = block_columns(head_dims(c));
  TensorMapShape shape{.base = keys, .bf16 = c.kv_dtype == DType::bf16, .rank = 3, .swizzle_bytes = columns * 2};
  shape.extent = {static_cast<std::uint64_t>(c.head_dim), static_cast<std::uint64_t>(c.num_kv_heads),
                  static_cast<std::uint64_t>(rows)};
  shape.stride_bytes = {0, stride_bytes(c.num_kv_heads, c.head_dim), stride_bytes(rows, c.num_kv_heads * c.head_dim)};
  shape.box = {static_cast<std::uint32_t>(columns), 1, static_cast<std::uint32_t>(tile.kv)};
  return encode_tensor_map(map.words, shape);
}

}  // namespace

TensorMaps tensor_maps(const AttentionConfig& config, const TileConfig& tile, const Tensors& tensors,
                       const AttentionParams& p, std::int64_t max_transformed_keys) {
  TensorMaps maps{};
  if (q_box_tokens(config, tile) > 0) maps.q_usable = encode_q(maps.q, config, tile, tensors.q, p);
  if (box_rows(config, tile) > 0)
    maps.kv_usable =
        encode_kv(maps.k, config, tile, tensors.k, config.head_dim, {p.k_page_stride, p.k_row_stride, p.k_head_stride}) &&
        encode_kv(maps.v, config, tile, tensors.v, config.vo_dim(), {p.v_page_stride, p.v_row_stride, p.v_head_stride});
  if (tile.q_buffers > 0 && max_transformed_keys > 0)
    maps.transformed_usable = encode_transformed(maps.transformed, config, tile, p.transformed_keys, max_transformed_keys);
  return maps;
}

}  // namespace heddle
