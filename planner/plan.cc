#include "planner/plan.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/error.h"
#include "planner/check_batch.h"
#include "planner/deal.h"
#include "planner/in_step.h"
#include "planner/layout.h"
#include "planner/prefix_parts.h"
#include "planner/row_keys.h"
#include "planner/split.h"
#include "planner/split_chunks.h"
#include "planner/streams.h"
#include "planner/transformed_keys.h"

namespace heddle {

struct Planner::Scratch {
  std::array<std::vector<StreamRun>, kNumPipelines> runs;
  std::vector<WorkItem> items;
  std::vector<ChunkPlace> borders;  // batch-invariant plans only
  std::optional<Dealer> dealer;     // of append, and
  std::optional<InStepSplit> in_step;  // of decode; the others alone
  std::optional<PrefixFinder> prefixes;
  std::optional<PrefixCutter> prefix_parts;
};

namespace {

// Hands out sections of a plan, one behind the other; the bytes between them are zero, so that
// equal batches give equal bytes.
class PlanWriter {
 public:
  explicit PlanWriter(std::span<std::byte> out) : out_(out) {}

  std::int32_t position() const { return static_cast<std::int32_t>(end_); }
  template <typename Record>
  Record* at(std::size_t offset) {
    return reinterpret_cast<Record*>(out_.data() + offset);
  }
  template <typename Record>
  Record* at_end() {
    return at<Record>(end_);
  }
  void advance(std::size_t bytes) {
    end_ += bytes;
    skip_to(align_record(end_));
  }
  void skip_to(std::size_t offset) {
    std::memset(out_.data() + end_, 0, offset - end_);
    end_ = offset;
  }

 private:
  std::span<std::byte> out_;
  std::size_t end_ = 0;
};

void check_room(std::span<std::byte> out, const WorkspaceLayout& layout) {
  if (out.size() < layout.plan_bytes) {
    fail(ErrorKind::invalid_argument,
         "The plan has room for {} bytes; layout().plan_bytes = {} are needed.", out.size(),
         layout.plan_bytes);
  }
  const auto misaligned = reinterpret_cast<std::uintptr_t>(out.data()) % 16;
  if (misaligned != 0) {
    fail(ErrorKind::invalid_argument,
         "The plan's address is {} bytes off a multiple of 16; it must be on one.", misaligned);
  }
}

// Field by field: a record put together first and copied as a whole stalls on its own stores, 5 ns.
void write_record(RequestRecord& to, const CheckedBatch& batch, int r) {
  to.kv_offset = batch.kv_offset(r);
  to.qo_begin = batch.qo_begin(r);
  to.qo_len = batch.qo_len(r);
  to.kv_len = batch.kv_len(r);
  to.padding = 0;
}

// How many of a request's first keys are shared, those up to the end of the innermost part around it, and how many
// states they leave. Asked for every request in turn.
class SharedKeys {
 public:
  explicit SharedKeys(std::span<const PrefixPart> parts) : rest_(parts) {}

  void enter(int request) {
    while (depth_ > 0 && around_[depth_ - 1].end <= request) --depth_;
    for (; !rest_.empty() && rest_.front().begin == request; rest_ = rest_.subspan(1)) around_[depth_++] = rest_.front();
  }
  std::int32_t keys() const { return depth_ > 0 ? around_[depth_ - 1].key_end : 0; }
  std::int32_t states() const { return static_cast<std::int32_t>(depth_); }

 private:
  std::span<const PrefixPart> rest_;
  std::array<PrefixPart, kMaxPrefixStates> around_;
  std::size_t depth_ = 0;
};

// Lists the streams of every request, and of every shared prefix: its requests then have the keys behind it.
void list_streams(const PlanConfig& config, const CheckedBatch& batch, std::span<const PrefixPart> parts,
                  std::span<StreamList, kNumPipelines> lists) {
  SharedKeys shared(parts);
  for (int r = 0; r < batch.num_requests; ++r) {
    shared.enter(r);
    const std::int32_t qo_len = batch.qo_len(r), skipped = shared.keys();
    if (qo_len == 0) continue;
    const std::int64_t kv_offset = batch.kv_offset(r) + (skipped > 0 ? skipped / batch.page_size : 0);
    lists[static_cast<int>(pipeline_of(config, qo_len))].add(
        {kv_offset, r, batch.qo_begin(r), qo_len, batch.kv_len(r) - skipped, shared.states()});
  }
  for (const PrefixPart& p : parts) {
    const std::int32_t rows = batch.qo_begin(p.end) - batch.qo_begin(p.begin);
    lists[static_cast<int>(Pipeline::append)].add_prefix(
        {batch.kv_offset(p.begin) + p.key_begin / batch.page_size, prefix_number(p.begin, p.state),
         batch.qo_begin(p.begin), rows, p.keys() + rows},
        p.keys());
  }
}

// From bundles of heads that are read abreast, which the splits count, to heads.
void unbundle_heads(std::span<WorkItem> items, std::int32_t heads_abreast) {
  if (heads_abreast == 1) return;
  for (WorkItem& item : items) {
    item.kv_head_begin *= heads_abreast;
    item.kv_head_end *= heads_abreast;
  }
}

}  // namespace

Planner::Planner(const PlanConfig& config, const Maxima& maxima)
    : config_(config),
      maxima_(maxima),
      layout_(workspace_layout(config, maxima)),
      scratch_(std::make_unique<Scratch>()) {
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    const PlanBounds bounds = plan_bounds(config, maxima, p);
    scratch_->runs[static_cast<int>(p)].resize(static_cast<std::size_t>(bounds.runs));
    const auto borders = static_cast<std::size_t>(config.of(p).num_ctas) + 1;
    if (config.batch_invariant && borders > scratch_->borders.size())
      scratch_->borders.resize(borders);
    if (p == Pipeline::append) scratch_->items.resize(static_cast<std::size_t>(bounds.items));
    if (config.batch_invariant) continue;
    if (p == Pipeline::append)
      scratch_->dealer.emplace(bounds.runs, bounds.items, config.of(p).num_ctas);
    else
      scratch_->in_step.emplace(config, bounds.runs);
  }
  if (!config.share_prefixes) return;
  scratch_->prefixes.emplace(config, maxima);
  scratch_->prefix_parts.emplace(config, maxima);
}

Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

std::span<const PrefixPart> Planner::shared_prefixes(const CheckedBatch& batch, const MaskBounds& mask, PlanSummary& summary) {
  if (batch.batch.kv_indices.empty()) return {};
  const std::span<const SharedPrefix> prefixes = scratch_->prefixes->find(mask, batch);
  summary.shared_prefixes = static_cast<int>(prefixes.size());
  for (const SharedPrefix& p : prefixes) {
    summary.shared_keys += std::int64_t{p.keys()} * (p.end - p.begin - 1);
    summary.prefix_levels = std::max(summary.prefix_levels, p.level + 1);
  }
  return scratch_->prefix_parts->cut(prefixes, batch);
}

PlanSummary Planner::plan(const Batch& batch, const MaskBounds& mask, std::span<std::byte> out) {
  check_room(out, layout_);
  check_mask(mask);
  const CheckedBatch checked = check_batch(config_, maxima_, batch);
  check_row_keys(config_, checked, mask);

  PlanWriter writer(out);
  PlanHeader& header = *writer.at_end<PlanHeader>();
  header = {};
  header.mask = mask;
  header.num_requests = checked.num_requests;
  writer.advance(sizeof(PlanHeader));
  writer.skip_to(sections_begin(config_));
  const RowKeys* row_keys = nullptr;
  if (config_.rows_given) {
    header.row_keys_offset = writer.position();
    row_keys = write_row_keys(checked, mask, writer.at_end<RowKeys>());
    writer.advance(sizeof(RowKeys) * static_cast<std::size_t>(checked.num_qo_rows()));
    writer.skip_to(align_item(static_cast<std::size_t>(writer.position())));
  }

  PlanSummary summary;
  if (const TransformedKeysPlan keys = write_transformed_keys(config_, checked, mask, layout_.max_transformed_keys,
                                                              writer.at_end<std::byte>());
      keys.num_requests > 0) {
    header.num_transformed = keys.num_requests;
    header.transformed_offset = writer.position();
    header.key_row_offset = writer.position() + static_cast<std::int32_t>(keys.key_row_offset);
    summary.transformed_keys = keys.num_keys;
    writer.advance(keys.bytes);
    writer.skip_to(align_item(static_cast<std::size_t>(writer.position())));
  }

  StreamList lists[] = {{config_, Pipeline::decode, mask, row_keys, scratch_->runs[0]},
                        {config_, Pipeline::append, mask, row_keys, scratch_->runs[1]}};
  const std::span<const PrefixPart> parts = shared_prefixes(checked, mask, summary);
  list_streams(config_, checked, parts, lists);
  if (!parts.empty()) header.prefix_row_begin = checked.qo_begin(parts.front().begin);
  for (const PrefixPart& p : parts) header.prefix_states = std::max(header.prefix_states, p.state + 1);
  summary.num_qo_rows = checked.num_qo_rows();
  summary.max_kv_len = checked.max_kv_len;
  (config_.page_size == 0 ? summary.num_kv_rows : summary.num_indices) = checked.num_kv_entries();
  for (int p = 0; p < kNumPipelines; ++p) {
    summary.max_over_mean[p] = 1.0;
    const PipelineShape& shape = config_.pipeline[p];
    if (!shape.present) continue;
    PlanSection& section = header.section[p];
    section.num_ctas = shape.num_ctas;
    section.cta_begin_offset = static_cast<std::int32_t>(layout_.section[p].cta_begin);
    section.items_offset = writer.position();
    const SplitOutput place{writer.at<std::int32_t>(layout_.section[p].cta_begin),
                            writer.at_end<WorkItem>(), scratch_->items};
    const Line line{lists[p].runs(), shape.num_ctas, LineCost(shape.cost)};
    const SplitResult split =
        config_.batch_invariant
            ? split_by_chunks(line.runs, config_, static_cast<Pipeline>(p), place, scratch_->borders)
        : p == static_cast<int>(Pipeline::append)
            ? scratch_->dealer->split(line, config_.heads_apart(Pipeline::append), lists[p].most_tiles(), place)
            : scratch_->in_step->split(line, config_, place);
    section.num_items = split.items;
    unbundle_heads({place.items, static_cast<std::size_t>(split.items)}, shape.heads_abreast);
    writer.advance(sizeof(WorkItem) * static_cast<std::size_t>(split.items));
    summary.items[p] = split.items;
    summary.joins[p] = split.joins;
    summary.partials[p] = split.partials;
    summary.max_over_mean[p] = split.max_over_mean;
  }
  summary.copy_bytes = static_cast<std::size_t>(writer.position());
  header.requests_offset = writer.position();
  RequestRecord* const records = writer.at_end<RequestRecord>();
  for (int r = 0; r < checked.num_requests; ++r) write_record(records[r], checked, r);
  writer.advance(sizeof(RequestRecord) * static_cast<std::size_t>(checked.num_requests));
  summary.plan_bytes = static_cast<std::size_t>(writer.position());
  return summary;
}

}  // namespace heddle
