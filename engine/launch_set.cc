#include "engine/launch_set.h"

#include <climits>
#include <cmath>
#include <optional>

#include "planner/cost_table.h"
#include "variants/code_scanner.h"
#include "variants/hook_code.h"

namespace heddle {
namespace {

constexpr int kMaxHeadDim = 256;

void check_positive(const char* name, int value) {
  if (value < 1) fail(ErrorKind::invalid_argument, "{} is {}; it must be at least 1.", name, value);
}

void check_dtypes(const AttentionConfig& c) {
  for (DType dtype : {c.q_dtype, c.kv_dtype})
    if (dtype != DType::bf16 && dtype != DType::f16)
      fail(ErrorKind::unsupported, "dtype {} is not supported for q, k and v; bf16 and f16 are.", name_of(dtype));
  if (c.q_dtype != c.kv_dtype)
    fail(ErrorKind::unsupported, "q_dtype {} and kv_dtype {} differ; they must be equal.", name_of(c.q_dtype),
         name_of(c.kv_dtype));
}

// What a hook of the variant reads that is a request's own, or counts from its first key.
std::optional<std::string> own_word(const Variant& variant) {
  for (const Component& part : variant.components)
    for (const auto& [hook, code] : part.hooks)
      for (const CodeToken& token : scan_code(part.file, code.code))
        if (token.kind == CodeToken::Kind::word && is_request_word(token.text)) return std::string(token.text);
  return {};
}

}  // namespace

void check_config(const AttentionConfig& c) {
  check_positive("num_qo_heads", c.num_qo_heads);
  check_positive("num_kv_heads", c.num_kv_heads);
  check_positive("head_dim", c.head_dim);
  if (c.num_qo_heads % c.num_kv_heads != 0)
    fail(ErrorKind::invalid_argument, "num_qo_heads {} is not a multiple of num_kv_heads {}.", c.num_qo_heads,
         c.num_kv_heads);
  if (c.head_dim_vo < 0)
    fail(ErrorKind::invalid_argument, "head_dim_vo is {}; it must be at least 1, or 0 for that of q and k.", c.head_dim_vo);
  for (const auto& [name, dim] : {std::pair{"head_dim", c.head_dim}, std::pair{"head_dim_vo", c.head_dim_vo}})
    if (dim % 8 != 0 || dim > kMaxHeadDim)
      fail(ErrorKind::unsupported, "{} {} is not supported; it must be a multiple of 8 up to {}.", name, dim, kMaxHeadDim);
  check_dtypes(c);
  if (c.page_size < 0)
    fail(ErrorKind::invalid_argument, "page_size is {}; it must be at least 1, or 0 for ragged K/V.", c.page_size);
  if (!(c.sm_scale >= 0) || std::isinf(c.sm_scale))
    fail(ErrorKind::invalid_argument, "sm_scale is {}; it must be finite and above 0 (0 stands for 1 / sqrt(head_dim)).",
         c.sm_scale);
  if (c.max_qo_len < 0)
    fail(ErrorKind::invalid_argument, "max_qo_len is {}; it must be at least 1, or 0 for any.", c.max_qo_len);
  if (c.max_requests < 0)
    fail(ErrorKind::invalid_argument, "max_requests is {}; it must be at least 1, or 0 for any.", c.max_requests);
}

void check_rows(const Variant& variant, const std::vector<double>& values, const AttentionConfig& config) {
  for (Hook hook : {Hook::query_transform, Hook::key_transform, Hook::value_transform}) {
    const int width = variant.row_input(hook, values).rotary_dim;
    const bool is_v = hook == Hook::value_transform && config.vo_dim() != config.head_dim;
    const int head_dim = is_v ? config.vo_dim() : config.head_dim;
    if (width % 2 != 0 || width > head_dim)
      fail(ErrorKind::invalid_argument,
           "The {} of variant {} has rotary_dim {}; it must be even and at most {}, {}, or 0 for all of it.", name_of(hook),
           variant.name, width, is_v ? "head_dim_vo" : "head_dim", head_dim);
  }
}

void check_sharing(const Variant& variant, const AttentionConfig& c) {
  if (!c.share_prefixes) return;
  if (c.page_size == 0)
    fail(ErrorKind::invalid_argument, "share_prefixes needs pages; this Attention is for ragged K/V (page_size 0).");
  if (c.batch_invariant)
    fail(ErrorKind::invalid_argument,
         "share_prefixes and batch_invariant exclude each other: what is shared depends on the rest of the batch.");
  if (c.num_qo_heads / c.num_kv_heads > kMaxDecodeRows)
    fail(ErrorKind::unsupported, "share_prefixes takes at most {} query heads to a kv head; there are {}.", kMaxDecodeRows,
         c.num_qo_heads / c.num_kv_heads);
  const DeclaredMask& mask = variant.mask;
  if (!mask.window_left.empty() || !mask.window_right.empty() || !mask.sink.empty())
    fail(ErrorKind::unsupported,
         "Variant {} has a window or sinks, so rows see different keys of a prefix; share_prefixes cannot serve it.",
         variant.name);
  if (mask.rows_given)
    fail(ErrorKind::unsupported,
         "The rows of variant {} have their ranges of keys given, so they see different keys of a prefix; share_prefixes "
         "cannot serve it.",
         variant.name);
  if (const std::optional<std::string> word = own_word(variant))
    fail(ErrorKind::unsupported,
         "A hook of variant {} reads {}, which differs among the requests of a shared prefix; share_prefixes cannot "
         "serve it.",
         variant.name, *word);
}

void check_append_kv(const Variant& variant, const AttentionConfig& config) {
  if (config.append_kv != AppendKv::transform) return;
  if (!variant.has(Hook::key_transform) && !variant.has(Hook::value_transform))
    fail(ErrorKind::invalid_argument,
         "append_kv is transform, but variant {} has neither a key_transform nor a value_transform to apply; it may be "
         "copy or none.",
         variant.name);
}

std::vector<Pipeline> launch_set(const AttentionConfig& c) {
  if (c.share_prefixes) return {Pipeline::decode, Pipeline::append};
  const int group = c.num_qo_heads / c.num_kv_heads;
  if (group > kMaxDecodeRows) return {Pipeline::append};
  if (c.max_qo_len != 0 && std::int64_t{c.max_qo_len} * group <= kMaxDecodeRows) return {Pipeline::decode};
  return {Pipeline::decode, Pipeline::append};
}

bool runs_side_by_side(const AttentionConfig& c) { return launch_set(c).size() == kNumPipelines; }

bool transforms_keys(const Variant& variant, const AttentionConfig& c) {
  constexpr int kFewestTileRows = 64;  // requests of one query tile gain nothing
  if (!variant.has(Hook::key_transform) || variant.mask.rows_given) return false;
  if (c.append_kv == AppendKv::transform || c.share_prefixes) return false;
  const int rows = most_rows(Pipeline::append, c);
  return (rows == 0 || rows > kFewestTileRows) && launch_set(c).back() == Pipeline::append;
}

int decode_rows(const AttentionConfig& c) {
  const int group = c.num_qo_heads / c.num_kv_heads;
  return c.max_qo_len != 0 && std::int64_t{c.max_qo_len} * group <= 8 ? 8 : kMaxDecodeRows;
}

int most_rows(Pipeline pipeline, const AttentionConfig& c) {
  if (pipeline == Pipeline::decode) return decode_rows(c);
  // The rows of a shared prefix are those of its whole group.
  const std::int64_t rows = std::int64_t{c.max_qo_len} * (c.num_qo_heads / c.num_kv_heads);
  return c.share_prefixes || rows > INT_MAX ? 0 : static_cast<int>(rows);
}

PipelineShape pipeline_shape(Pipeline pipeline, const TileConfig& tile, int num_ctas, const HeadDims& dims) {
  const int head_dim = (dims.qk + dims.vo) / 2;  // K and V, Q K^T and P V cost as much together as two of this
  return {.present = true, .num_ctas = num_ctas, .tile_rows = tile.rows, .tile_kv = tile.kv,
          .cost = cost_model(pipeline, tile, head_dim), .heads_abreast = tile.heads_abreast};
}

}  // namespace heddle
