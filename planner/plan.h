// Door of the room `planner`: from the lengths of a batch to a balanced work list.
//
// A batch is checked once (check_batch.h), its query tiles are listed with the KV tiles that the declared mask leaves
// visible (streams.h, visible.h), all of a pipeline's streams are laid in a row and cut into one even share a CTA
// (split.h; in_step.h and deal.h, where they are read faster otherwise; or split_chunks.h), and the records of
// templates/abi.h are written into one block of bytes that one copy moves. A plan depends on lengths (and given ranges)
// and config alone, never on page ids or addresses: equal lengths, equal bytes. How large it can get is known beforehand (layout.h). plan_view.h reads a plan back; explain.h and draw.h
// show it to people; lengths.h reads the lengths that the command is given. Where asked to, it finds prefixes that
// requests share (prefixes.h); where each row's range of keys comes with the batch, that decides which tiles are visited
// (row_keys.h); it says whose keys are transformed ahead of append (transformed_keys.h). This room knows no CUDA and no
// variant, only masks.
//
// Why the contiguous split is the default, and not chunks dealt to the least loaded CTA, longest
// first: by the cost model (not from a GPU; 8 kv heads, tiles of 64 keys, the default CostModel)
// the busiest CTA stands at this multiple of the mean, contiguous against dealt:
//
//   CTAs  1x131072+255x1024  zipf:256:65536  uniform:64:256:16384  64x4096        10000x300
//   132   1.003   1.009      1.003   1.010   1.002   1.010         1.004   1.031  1.005   1.002
//   264   1.005   1.052      1.006   1.009   1.003   1.028         1.008   1.031  1.005   1.003
//
// So both are even; the contiguous one keeps heads of a request together (10,000 requests of 8 heads are 10,100 records,
// not 80,000), and bounds partial states by the CTAs. Where many query tiles read the same keys, L2 is worth more.
//
// Its price: where borders fall, and so the last bits of a request, depends on the whole batch. A
// batch_invariant plan cuts by a rule of the request alone and deals whole chunks (split_chunks.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/types.h"
#include "templates/abi.h"

namespace heddle {

// Microseconds (or any one unit) that a CTA spends: per_item + per_tile * KV tiles for each kv head
// of an item (or each heads_abreast of them), and per_partial more where the item leaves a partial state to be merged.
struct CostModel {
  double per_item = 1.0;
  double per_tile = 1.0;
  double per_partial = 0.5;
};

// One kernel family as the planner sees it.
struct PipelineShape {
  bool present = false;  // false: the launch set holds no such kernel
  int num_ctas = 0;      // persistent CTAs of its grid
  int tile_rows = 0;     // packed rows (token, head in group) of a query tile
  int tile_kv = 0;       // keys of a KV tile
  CostModel cost;
  int heads_abreast = 1;  // kv heads that a CTA reads side by side: one stream, whose tiles have the keys of each
};

struct PlanConfig {
  int num_kv_heads = 0;
  int group = 0;  // num_qo_heads / num_kv_heads
  int head_dim = 0;
  int head_dim_vo = 0;       // 0: head_dim
  int page_size = 0;         // 0: ragged K/V
  int max_decode_rows = 16;  // requests with group * qo_len <= this go to decode (if present)
  bool batch_invariant = false;  // cut by the request alone (chunks.h), not where CTAs meet
  bool share_prefixes = false;   // keys that neighbours have in common are read once (prefixes.h)
  bool rows_given = false;       // every batch gives the range of keys that each row sees (row_keys.h)
  bool transforms_keys = false;  // append finds keys transformed, where there is room for them (transformed_keys.h)
  double sharing_cost = 0;       // what that takes beside the keys, in the cost models' unit
  std::array<PipelineShape, kNumPipelines> pipeline;  // indexed by Pipeline
  int vo_dim() const { return head_dim_vo > 0 ? head_dim_vo : head_dim; }
  const PipelineShape& of(Pipeline p) const { return pipeline[static_cast<int>(p)]; }
  int heads_apart(Pipeline p) const { return num_kv_heads / of(p).heads_abreast; }  // streams of a query tile
};

// What a workspace is made for. Everything within it can be planned.
struct Maxima {
  int max_requests = 0;
  std::int64_t max_qo_rows = 0;    // query rows of a whole batch
  std::int64_t max_kv_tokens = 0;  // keys of a whole batch
  int max_qo_len = 0;              // query rows of one request; 0: no bound below max_qo_rows
  // Keys of a whole batch that the workspace has room for once key_transform has changed them (num_kv_heads *
  // head_dim elements each), so that append needs to do so once a run and not once a query tile. Requests of a
  // batch that it does not reach to are slower. Below 0: as many as 32 MiB hold, or the batch can have. More than 0
  // where no keys are transformed ahead is an error.
  std::int64_t max_transformed_keys = -1;
};

// One step's lengths, all on the host. Request r has query rows [qo_indptr[r], qo_indptr[r + 1]).
// Paged: its pages are entries [kv_indptr[r], kv_indptr[r + 1]) of kv_indices, the last one filled
// with last_page_len[r] keys (1 .. page_size; 0 only where it has no page). With a dense table of
// row stride s (vLLM's block table), give kv_table_stride = s and kv_lens instead.
// Ragged: its K/V rows are [kv_indptr[r], kv_indptr[r + 1]).
struct Batch {
  std::span<const std::int32_t> qo_indptr;      // [num_requests + 1]
  std::span<const std::int32_t> kv_indptr;      // [num_requests + 1], or empty with a dense table
  std::span<const std::int32_t> last_page_len;  // [num_requests], paged CSR only
  std::int64_t kv_table_stride = 0;             // entries a row, dense table only
  std::span<const std::int32_t> kv_lens;        // [num_requests], dense table only
  // Page ids as the run will have them, for a plan with share_prefixes alone; left out, nothing is shared.
  std::span<const std::int32_t> kv_indices;
  // For a variant whose mask has "rows": "given", and for no other: row i of q sees, of its request's keys,
  // [first_keys[i], end_keys[i]) and of those what the rest of the mask leaves. Where first >= end it sees none.
  std::span<const std::int32_t> first_keys;  // [num_qo_rows]; none below 0
  std::span<const std::int32_t> end_keys;    // [num_qo_rows]; none above the request's kv_len
};

// Byte offsets and sizes of a workspace; a pure function of PlanConfig and Maxima.
struct WorkspaceLayout {
  std::size_t plan_bytes = 0;  // at offset 0: room for the largest plan
  struct Section {
    std::size_t partial_o = 0;    // f32 [max_partials, heads_abreast, tile_rows, head_dim_vo]
    std::size_t partial_lse = 0;  // f32 [max_partials, heads_abreast, tile_rows]
    std::size_t cta_begin = 0;    // in every plan: i32 [num_ctas + 1]
    int max_partials = 0;
  };
  std::array<Section, kNumPipelines> section;
  // States of shared prefixes, with share_prefixes (most_prefix_states: layout.h).
  std::size_t prefix_o = 0;    // f32 [most_prefix_states, num_qo_heads, head_dim_vo]
  std::size_t prefix_lse = 0;  // f32 [most_prefix_states, num_qo_heads]
  std::size_t transformed_keys = 0;  // [max_transformed_keys, num_kv_heads, head_dim], 2 bytes each, with transforms_keys
  std::int64_t max_transformed_keys = 0;  // settled
  std::size_t slots_begin = 0, slots_end = 0;  // bytes that must be 0xff before first use
  std::size_t total_bytes = 0;
};

// Checks both arguments. Every section starts on a multiple of 256 bytes.
WorkspaceLayout workspace_layout(const PlanConfig& config, const Maxima& maxima);

// What a plan came to; per pipeline where it says so.
struct PlanSummary {
  std::size_t copy_bytes = 0;  // what the device needs of the plan; its first bytes
  std::size_t plan_bytes = 0;  // with what stays on the host
  std::array<int, kNumPipelines> items{};
  std::array<int, kNumPipelines> partials{};
  std::array<int, kNumPipelines> joins{};  // cut streams
  std::array<double, kNumPipelines>
      max_over_mean{};  // cost of the busiest CTA over the mean; 1 when idle
  int shared_prefixes = 0;      // groups of requests, and
  int prefix_levels = 0;        // how deep they nest
  std::int64_t shared_keys = 0;  // that need not be read again: of every group, times its requests but one
  std::int64_t transformed_keys = 0;  // that are transformed ahead of append
  // What a run's tensors must reach.
  std::int64_t num_qo_rows = 0;
  std::int64_t max_kv_len = 0;   // of one request
  std::int64_t num_kv_rows = 0;  // ragged: K/V rows
  std::int64_t num_indices = 0;  // paged: entries of kv_indices
};

struct CheckedBatch;
struct PrefixPart;

// Checks batches and turns them into work lists. Allocates in its constructor only.
// Not thread-safe: one Planner per workspace.
class Planner {
 public:
  Planner(const PlanConfig& config, const Maxima& maxima);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  // Checks the batch and mask (Error names the first offending request, the value and what is
  // allowed) before it touches `out`, then writes the plan there: at least layout().plan_bytes,
  // aligned to 16 bytes, in memory that is quick to read back. No allocation.
  PlanSummary plan(const Batch& batch, const MaskBounds& mask, std::span<std::byte> out);

  const PlanConfig& config() const { return config_; }
  const Maxima& maxima() const { return maxima_; }
  const WorkspaceLayout& layout() const { return layout_; }

 private:
  PlanConfig config_;
  Maxima maxima_;
  WorkspaceLayout layout_;
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;

  std::span<const PrefixPart> shared_prefixes(const CheckedBatch& batch, const MaskBounds& mask, PlanSummary& summary);
};

}  // namespace heddle
