#include "tools/work_list.h"

namespace heddle::tools {
namespace {

template <typename Record>
std::span<const Record> records(std::span<const std::byte> plan, std::int32_t offset, std::int32_t count) {
  return {reinterpret_cast<const Record*>(plan.data() + offset), std::size_t(count)};
}

}  // namespace

const PlanHeader& header_of(std::span<const std::byte> plan) {
  return *reinterpret_cast<const PlanHeader*>(plan.data());
}

std::span<const RequestRecord> requests_of(std::span<const std::byte> plan) {
  const PlanHeader& header = header_of(plan);
  return records<RequestRecord>(plan, header.requests_offset, header.num_requests);
}

WorkList work_list_of(std::span<const std::byte> plan, Pipeline pipeline) {
  const PlanSection& section = header_of(plan).section[static_cast<int>(pipeline)];
  if (section.num_ctas == 0) return {};
  return {records<std::int32_t>(plan, section.cta_begin_offset, section.num_ctas + 1),
          records<WorkItem>(plan, section.items_offset, section.num_items),
          records<MergeRecord>(plan, section.merges_offset, section.num_merges)};
}

}  // namespace heddle::tools
