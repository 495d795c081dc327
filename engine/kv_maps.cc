#include "engine/kv_maps.h"

#include <limits>

#include "engine/kernel_source.h"
#include "runtime/driver.h"

namespace heddle {
namespace {

struct Strides {  // elements
  std::int64_t page, row, head;
};

bool encode(KvMaps::Map& map, const AttentionConfig& c, const TileConfig& tile, const Tensor& t, const Strides& s) {
  const auto bytes = [](std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? static_cast<std::uint64_t>(stride) * 2 : 16;  // an axis of one has any stride
  };
  const int columns = block_columns(c.head_dim);
  const std::int64_t outer = t.shape[0], rows = c.page_size == 0 ? outer : c.page_size;
  if (outer < 1 || outer > std::numeric_limits<std::int32_t>::max()) return false;
  TensorMapShape shape{.base = t.data, .bf16 = c.kv_dtype == DType::bf16, .rank = c.page_size == 0 ? 3 : 4,
                       .swizzle_bytes = columns * 2};
  shape.extent = {static_cast<std::uint64_t>(c.head_dim), static_cast<std::uint64_t>(c.num_kv_heads),
                  static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(outer)};
  shape.stride_bytes = {0, bytes(c.num_kv_heads, s.head), bytes(rows, s.row), bytes(outer, s.page)};
  shape.box = {static_cast<std::uint32_t>(columns), 1,
               static_cast<std::uint32_t>(box_rows(c, tile)), 1};
  return encode_tensor_map(map.words, shape);
}

}  // namespace

KvMaps kv_maps(const AttentionConfig& config, const TileConfig& tile, const Tensors& tensors, const AttentionParams& p) {
  KvMaps maps{};
  if (box_rows(config, tile) == 0) return maps;
  maps.usable = encode(maps.k, config, tile, tensors.k, {p.k_page_stride, p.k_row_stride, p.k_head_stride}) &&
                encode(maps.v, config, tile, tensors.v, {p.v_page_stride, p.v_row_stride, p.v_head_stride});
  return maps;
}

}  // namespace heddle
