#include "planner/plan.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/error.h"
#include "planner/check_batch.h"
#include "planner/layout.h"
#include "planner/split.h"
#include "planner/streams.h"

namespace heddle {

struct Planner::Scratch {
  std::array<std::vector<StreamRun>, kNumPipelines> runs;
  std::vector<RequestRecord> requests;
  std::vector<WorkItem> items;
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

std::span<const RequestRecord> list_requests(const CheckedBatch& batch, std::span<RequestRecord> room) {
  for (int r = 0; r < batch.num_requests; ++r)
    room[r] = {batch.kv_offset(r), batch.qo_begin(r), batch.qo_len(r), batch.kv_len(r), 0};
  return room.first(static_cast<std::size_t>(batch.num_requests));
}

}  // namespace

Planner::Planner(const PlanConfig& config, const Maxima& maxima)
    : config_(config),
      maxima_(maxima),
      layout_(workspace_layout(config, maxima)),
      scratch_(std::make_unique<Scratch>()) {
  scratch_->requests.resize(static_cast<std::size_t>(maxima.max_requests));
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    const PlanBounds bounds = plan_bounds(config, maxima, p);
    scratch_->runs[static_cast<int>(p)].resize(static_cast<std::size_t>(bounds.runs));
    if (p == Pipeline::append) scratch_->items.resize(static_cast<std::size_t>(bounds.items));
  }
}

Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

PlanSummary Planner::plan(const Batch& batch, const MaskBounds& mask, std::span<std::byte> out) {
  check_room(out, layout_);
  check_mask(mask);
  const CheckedBatch checked = check_batch(config_, maxima_, batch);

  const std::span<const RequestRecord> requests = list_requests(checked, scratch_->requests);

  StreamList lists[] = {{config_, Pipeline::decode, scratch_->runs[0]},
                        {config_, Pipeline::append, scratch_->runs[1]}};
  for (int r = 0; r < checked.num_requests; ++r) {
    const std::int32_t qo_len = checked.qo_len(r);
    if (qo_len > 0)
      lists[static_cast<int>(pipeline_of(config_, qo_len))].add(mask, r, qo_len, checked.kv_len(r));
  }

  PlanWriter writer(out);
  PlanHeader& header = *writer.at_end<PlanHeader>();
  header = {};
  header.mask = mask;
  header.num_requests = checked.num_requests;
  writer.advance(sizeof(PlanHeader));
  writer.skip_to(sections_begin(config_));

  PlanSummary summary;
  for (int p = 0; p < kNumPipelines; ++p) {
    summary.max_over_mean[p] = 1.0;
    const PipelineShape& shape = config_.pipeline[p];
    if (!shape.present) continue;
    PlanSection& section = header.section[p];
    section.num_ctas = shape.num_ctas;
    section.cta_begin_offset = static_cast<std::int32_t>(layout_.section[p].cta_begin);
    section.items_offset = writer.position();
    const SplitResult split = split_evenly(
        lists[p].runs(), config_.num_kv_heads, shape,
        {requests.data(), writer.at<std::int32_t>(layout_.section[p].cta_begin),
         writer.at_end<WorkItem>(), scratch_->items});
    section.num_items = split.items;
    writer.advance(sizeof(WorkItem) * static_cast<std::size_t>(split.items));
    summary.items[p] = split.items;
    summary.joins[p] = split.joins;
    summary.partials[p] = split.partials;
    summary.max_over_mean[p] = split.max_over_mean;
  }
  summary.copy_bytes = static_cast<std::size_t>(writer.position());
  header.requests_offset = writer.position();
  std::copy(requests.begin(), requests.end(), writer.at_end<RequestRecord>());
  writer.advance(requests.size_bytes());
  summary.plan_bytes = static_cast<std::size_t>(writer.position());
  return summary;
}

}  // namespace heddle
