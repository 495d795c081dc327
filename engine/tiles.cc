#include "engine/tiles.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "engine/error.h"
#include "engine/launch_set.h"

namespace heddle {
namespace {

constexpr int kReservedPerCta = 1024;  // shared memory that the driver keeps, bytes
constexpr int kShortRows = 64;         // of one consumer warpgroup: drafts and short appends, which K and V's bytes limit

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Of a tile's rows in shared memory.
struct Columns {
  int qk, vo;
};
Columns columns_of(const HeadDims& dims) { return {tile_columns(dims.qk), tile_columns(dims.vo)}; }

// A warp's stage also holds its sums, f32, which only a wide V makes it larger for.
int decode_smem_bytes(const Columns& columns, int rows, int warp_keys, int warps, int stages, int heads) {
  const int warp_stage = std::max(warp_keys * (columns.qk + columns.vo) * 2, rows * columns.vo * 4);
  return round_up(stages * warps * warp_stage + stages * heads * rows * columns.qk * 2 + 2 * warps * rows * 4, 128);
}

int append_smem_bytes(const Columns& columns, int rows, int kv) {
  return rows * columns.qk * 2 + 2 * kv * (columns.qk + columns.vo) * 2 + 2 * 2 * kv * 8 + 2 * kv * 4 + 256;
}

int append_sm90_smem_bytes(const Columns& columns, int rows, int kv, int q_buffers, int stages) {
  constexpr int kRecord = 16 + 64 + 2 * 12 + 8;
  const int barriers = (q_buffers + stages) * 2 * 8, records = 4 * kRecord + 8;
  const int tiles = (q_buffers * rows * columns.qk + stages * kv * std::max(columns.qk, columns.vo)) * 2;
  return round_up(tiles + barriers + records, 1024);
}

int ctas_that_fit(int smem, const DeviceLimits& limits) {
  if (smem > limits.shared_per_block) return 0;
  return limits.shared_per_sm / (smem + kReservedPerCta);
}

TileConfig decode_tile(const Columns& columns, int rows, int warp_keys, int warps, int stages, int ctas, const DeviceLimits& limits,
                       int heads = 1) {
  const int smem = decode_smem_bytes(columns, rows, warp_keys, warps, stages, heads);
  if (ctas_that_fit(smem, limits) < ctas) return {};
  return {rows, warps / heads * warp_keys, warps, stages, ctas, smem, 0, false, heads};
}

// Bytes go by both, registers by V's.
int decode_width(const Columns& columns) { return std::max((columns.qk + columns.vo) / 2, columns.vo); }

// Two neighbouring heads abreast, whose rows memory gives faster together than apart where they are short (ladder). Rows of 96
// columns have only eight warps an SM then, with which rope of 64 columns took 28 % longer than with twelve; so not with
// hooks. Not for batch-invariant plans: 64 uniform requests of 64 columns 260 us with four abreast, 255 with one; two were not
// tried.
TileConfig abreast_decode_tile(const Columns& columns, int rows, const AttentionConfig& config, const DeviceLimits& limits,
                               bool tile_hooks) {
  const int width = decode_width(columns);
  if (config.num_kv_heads % 2 != 0 || config.batch_invariant) return {};
  if (width <= 64) return decode_tile(columns, rows, 32, 4, 2, 3, limits, 2);
  if (width <= 96 && !tile_hooks) return decode_tile(columns, rows, 16, 4, 3, 2, limits, 2);
  return {};
}

// What won on an H200 (ladder in templates/decode.cuh): twelve warps an SM with two stages, as far as they
// fit; short rows as 32 keys a warp, so that a tile is worth its fixed cost.
TileConfig fastest_decode_tile(const Columns& columns, int rows, const DeviceLimits& limits) {
  const int width = decode_width(columns);
  if (width <= 64) return decode_tile(columns, rows, 32, 6, 2, 2, limits);
  if (width <= 128) return decode_tile(columns, rows, 16, 6, 2, 2, limits);
  if (width <= 192) return decode_tile(columns, rows, 16, 4, 2, 2, limits);
  return decode_tile(columns, rows, 16, 6, 2, 1, limits);
}

// Whether no batch has more kv heads of requests than the device SMs, by the declared maximum, or the model one kv head.
// A CTA is then seldom at the end of one.
bool has_few_heads(const AttentionConfig& config, const DeviceLimits& limits) {
  const std::int64_t heads = std::int64_t{config.max_requests} * config.num_kv_heads;
  return config.num_kv_heads == 1 || (heads > 0 && heads <= limits.num_sms);
}

// What won there: one large CTA an SM, whose pieces are fewer to join, of eight warps, all that have 255 registers each.
// Wide rows have one CTA anyway.
TileConfig large_decode_tile(const Columns& columns, int rows, const DeviceLimits& limits) {
  const int width = decode_width(columns);
  if (width > 192) return {};
  return decode_tile(columns, rows, width <= 64 ? 32 : 16, 8, 2, 1, limits);
}

// With as many registers as there are, for GPUs with less shared memory and for hooks that need them: most
// bytes under way first.
TileConfig roomy_decode_tile(const Columns& columns, int rows, const DeviceLimits& limits) {
  TileConfig best{};
  int best_bytes = 0;
  for (int ctas : {2, 1}) {
    for (int warps : {4, 2}) {
      for (int stages = 3; stages >= 2; --stages) {
        const TileConfig tile = decode_tile(columns, rows, 16, warps, stages, ctas, limits);
        const int in_flight = tile.ctas_per_sm * (stages - 1) * warps * 32 * (columns.qk + columns.vo);
        if (in_flight <= best_bytes) continue;
        best = tile;
        best_bytes = in_flight;
      }
    }
  }
  return best;
}

TileConfig append_tile(const Columns& columns, int rows, int kv, const DeviceLimits& limits) {
  const int smem = append_smem_bytes(columns, rows, kv);
  return {rows, kv, 4, 2, std::min(2, ctas_that_fit(smem, limits)), smem};
}

// Stages of a short tile, by the bytes of K and V that they have under way. More of them are slower: 64 x 64 with 8 / 7 / 6 /
// 5 / 4 / 3 stages of 16 KB, us (2026-12-01, one H200): 8 tokens of 32 requests 132 / 127.7 / 127.2 / 129.2 / 133.6 / 157, 16
// tokens 135 / 129.0 / 127.8 / 129.2 / 134.9 / 159, 8 tokens of 8 requests 136 / 131.6 / 130.2 / 133.3 / 138.8 / 161 (the first
// and the last two before output and partial states were kept in L2, which took 1.4 to 3.2); D = 64 72.8 / 72.6 / 75.4 / 88.4
// with 6 / 5 / 4 / 3. While L2 fetched 256 bytes at once 5 were best, 134, as were eight of which no more than four were ever
// under way. Gathered rows, 128 keys, 131 / 129 / 136.5 with 5 / 4 / 3.
int short_stages(int stage_bytes, bool gathered) {
  const int under_way = gathered ? 112 << 10 : 96 << 10;
  return std::clamp((under_way + stage_bytes - 1) / stage_bytes, 3, 8);
}

// One CTA an SM, with as many stages (up to `most`) as fit beside the query tiles.
TileConfig append_sm90_tile(const Columns& columns, int rows, int kv, int q_buffers, int most, const DeviceLimits& limits) {
  for (int stages = most; stages >= 3; --stages) {
    const int smem = append_sm90_smem_bytes(columns, rows, kv, q_buffers, stages);
    if (ctas_that_fit(smem, limits) >= 1) return {rows, kv, (rows / 64 + 1) * 4, stages, 1, smem, q_buffers};
  }
  return {};
}

// Rows that the four warps of the wgmma kernel's producer copy at once where they gather.
int copy_step(const HeadDims& dims) { return 1024 / block_columns(dims); }

// Whether rows of K and V are gathered: a page is no whole number of such steps. Tiles are.
bool are_gathered(const AttentionConfig& config) { return config.page_size % copy_step(head_dims(config)) != 0; }

// Tiles of the wgmma kernel, in the order in which they are tried. Accumulators decide: S takes kv / 2
// registers a thread, P half of that, O its columns / 2. Of 216 (152 with three consumers) about 40 are
// needed for the rest; 192 x 128 leaves less, enough for variants without hooks on tiles and a loader of 32 registers.
// Tiles of kShortRows only where no request has more rows: with few keys, where hooks and masks gain 4 to 8 %, but for
// rows that are gathered. 256 columns have none: 8 tokens of 32 requests 259 us (64 keys, 3 stages) for 255 (128 x 80).
void add_sm90_tiles(std::vector<TileConfig>& tiles, bool are_short, const AttentionConfig& config, const DeviceLimits& limits,
                    bool tile_hooks) {
  struct Row {
    Columns most;  // serves tiles of up to so many
    int rows, kv, q_buffers;
    int gathered_kv = 0;  // of rows that are gathered, where that is not kv
    bool takes_hooks = true;  // on tiles
  };
  static constexpr Row kTable[] = {
      {{64, 64}, kShortRows, 128, 2},    {{128, 128}, kShortRows, 64, 2, 128},  //
      {{192, 128}, kShortRows, 112, 2},  //
      {{64, 64}, 192, 128, 2, 0, false}, {{64, 64}, 192, 96, 2}, {{64, 64}, 128, 128, 2},  //
      {{128, 128}, 128, 128, 2}, {{128, 128}, 128, 64, 2},  //
      {{192, 128}, 128, 112, 1}, {{192, 128}, 128, 64, 1},  //
      {{256, 256}, 128, 80, 1},  {{256, 256}, 128, 64, 1},
  };
  const HeadDims dims = head_dims(config);
  const Columns columns = columns_of(dims);
  const Row* served = nullptr;
  for (const Row& row : kTable) {
    if (columns.qk > row.most.qk || columns.vo > row.most.vo || (row.rows == kShortRows && !are_short)) continue;
    if (tile_hooks && !row.takes_hooks) continue;
    if (!served) served = &row;
    if (row.most.qk != served->most.qk || row.kv % copy_step(dims) != 0) continue;
    const bool gathered = are_gathered(config);
    const int kv = gathered && row.gathered_kv > 0 ? row.gathered_kv : row.kv;
    const int stage_bytes = kv * std::max(columns.qk, columns.vo) * 2;
    const int most = row.rows == kShortRows ? short_stages(stage_bytes, gathered) : 8;
    tiles.push_back(append_sm90_tile(columns, row.rows, kv, row.q_buffers, most, limits));
  }
}

}  // namespace

DeviceLimits limits_of(const std::string& arch) {
  struct Row {
    const char* arch;
    DeviceLimits limits;
  };
  static const Row rows[] = {
      {"sm_80", {108, 163 << 10, 164 << 10}},   {"sm_86", {84, 99 << 10, 100 << 10}},
      {"sm_89", {142, 99 << 10, 100 << 10}},    {"sm_90", {132, 227 << 10, 228 << 10}},
      {"sm_90a", {132, 227 << 10, 228 << 10, true}},  {"sm_100a", {148, 227 << 10, 228 << 10}},
      {"sm_103a", {148, 227 << 10, 228 << 10}}, {"sm_120", {188, 99 << 10, 100 << 10}},
  };
  std::string known;
  for (const Row& row : rows) {
    if (arch == row.arch) return row.limits;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.arch);
  }
  fail(ErrorKind::invalid_argument, "Architecture \"{}\" is not known; known are {}.", arch, known);
}

std::string arch_of(int major, int minor) {
  if (major < 8)
    fail(ErrorKind::unsupported, "The GPU has compute capability {}.{}; heddle needs 8.0 or later.", major, minor);
  const bool has_own_target = major == 9 || major == 10;
  return fmt::format("sm_{}{}{}", major, minor, has_own_target ? "a" : "");
}

bool has_tile_hooks(const Variant& variant) {
  for (const Hook hook : {Hook::query_transform, Hook::key_transform, Hook::value_transform, Hook::logits_transform, Hook::logits_mask})
    if (variant.has(hook)) return true;
  return variant.mask.rows_given || !variant.use_softmax;
}

std::vector<TileConfig> tile_candidates(Pipeline pipeline, const AttentionConfig& config, const DeviceLimits& limits,
                                        bool tile_hooks) {
  const HeadDims dims = head_dims(config);
  const Columns columns = columns_of(dims);
  const int rows = most_rows(pipeline, config);
  std::vector<TileConfig> tiles;
  if (pipeline == Pipeline::decode) {
    if (has_few_heads(config, limits)) tiles.push_back(large_decode_tile(columns, rows, limits));
    tiles.push_back(abreast_decode_tile(columns, rows, config, limits, tile_hooks));
    const TileConfig fastest = fastest_decode_tile(columns, rows, limits);
    tiles.push_back(fastest);
    // Wider rows read q again as it is (templates/decode_rows.cuh).
    if (rows > 8 && columns.qk + columns.vo <= 256) tiles.push_back(fastest), tiles.back().reads_q_again = true;
    tiles.push_back(roomy_decode_tile(columns, rows, limits));
  } else {
    if (limits.wgmma) add_sm90_tiles(tiles, rows > 0 && rows <= kShortRows, config, limits, tile_hooks);
    const int width = std::max(columns.qk, columns.vo);
    // Twice the keys, so that a tile is worth its fixed cost, where two CTAs an SM remain.
    if (width <= 64) {
      const TileConfig wide = append_tile(columns, 128, 128, limits);
      if (wide.ctas_per_sm == 2) tiles.push_back(wide);
    }
    if (width <= 128)
      tiles.insert(tiles.end(), {append_tile(columns, 128, 64, limits), append_tile(columns, 128, 32, limits)});
    else
      tiles.insert(tiles.end(), {append_tile(columns, 64, 32, limits), append_tile(columns, 64, 16, limits)});
  }
  std::erase_if(tiles, [](const TileConfig& tile) { return tile.ctas_per_sm < 1; });
  if (tiles.empty())
    fail(ErrorKind::unsupported, "No {} tile for head_dim {}{} fits into {} bytes of shared memory.", name_of(pipeline),
         dims.qk, dims.vo != dims.qk ? fmt::format(" and head_dim_vo {}", dims.vo) : "", limits.shared_per_block);
  return tiles;
}

HeadDims head_dims(const AttentionConfig& config) { return {config.head_dim, config.vo_dim()}; }

int block_columns(const HeadDims& dims) {
  return std::gcd(64, std::gcd(tile_columns(dims.qk), tile_columns(dims.vo)));
}

int box_rows(const AttentionConfig& config, const TileConfig& tile) {
  if (tile.q_buffers == 0 || are_gathered(config)) return 0;
  return std::gcd(tile.kv, config.page_size);  // ragged: the whole tile
}

int q_box_tokens(const AttentionConfig& config, const TileConfig& tile) {
  constexpr int kLongestAxis = 256;  // of a box
  const int group = config.num_qo_heads / config.num_kv_heads;
  if (tile.q_buffers == 0 || tile.rows % group != 0 || tile.rows / group > kLongestAxis) return 0;
  return tile.rows / group;
}

}  // namespace heddle
