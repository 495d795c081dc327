// Typed spans over the bytes of a plan: for the CPU device, tools and tests. Copies nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/error.h"
#include "templates/abi.h"

namespace heddle {

// The number of a visited KV tile in the sequence: its keys start at tile * tile_kv.
inline std::int32_t sequence_tile(const WorkItem& item, std::int32_t visited) {
  return visited < item.gap_begin ? visited : visited + item.gap_tiles;
}

class PlanView {
 public:
  struct Section {
    std::span<const std::int32_t> cta_begin;  // [num_ctas + 1]; empty where the pipeline is absent
    std::span<const WorkItem> items;

    int num_ctas() const { return cta_begin.empty() ? 0 : static_cast<int>(cta_begin.size()) - 1; }
    // Streams that are cut: each has one last piece.
    std::int64_t num_joins() const {
      return std::count_if(items.begin(), items.end(), [](const WorkItem& item) { return item.join > 0; });
    }
    // Every kv head counts, also where several are read abreast.
    std::int64_t num_streams() const {
      std::int64_t streams = 0;
      for (const WorkItem& item : items)
        if (item.partial < 0 || item.join > 0) streams += item.kv_head_end - item.kv_head_begin;
      return streams;
    }
    std::span<const WorkItem> items_of(int cta) const {
      return items.subspan(cta_begin[cta], cta_begin[cta + 1] - cta_begin[cta]);
    }
  };

  // `plan` is what Planner::plan wrote and outlives the view; bytes behind the plan do not matter.
  explicit PlanView(std::span<const std::byte> plan) : plan_(plan) {
    if (plan.size() < sizeof(PlanHeader)) {
      fail(ErrorKind::invalid_argument, "A plan of {} bytes has no header; it takes at least {}.",
           plan.size(), sizeof(PlanHeader));
    }
  }

  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(plan_.data()); }
  std::span<const RequestRecord> requests() const {
    return records<RequestRecord>(header().requests_offset, header().num_requests);
  }
  // Of q's rows, where the batch gave ranges; else empty.
  std::span<const RowKeys> row_keys() const {
    if (header().row_keys_offset == 0 || requests().empty()) return {};
    const RequestRecord& last = requests().back();
    return records<RowKeys>(header().row_keys_offset, last.qo_begin + last.qo_len);
  }
  // Of requests whose keys are transformed ahead of append, and of every request the row of key 0; else empty.
  std::span<const TransformedKeys> transformed_keys() const {
    return records<TransformedKeys>(header().transformed_offset, header().num_transformed);
  }
  std::span<const std::int32_t> key_rows() const {
    if (header().key_row_offset == 0) return {};
    return records<std::int32_t>(header().key_row_offset, header().num_requests);
  }
  Section section(Pipeline pipeline) const {
    const PlanSection& s = header().section[static_cast<int>(pipeline)];
    if (s.num_ctas == 0) return {};
    return {records<std::int32_t>(s.cta_begin_offset, s.num_ctas + 1),
            records<WorkItem>(s.items_offset, s.num_items)};
  }

 private:
  template <typename Record>
  std::span<const Record> records(std::int32_t offset, std::int32_t count) const {
    const auto bytes = plan_.subspan(static_cast<std::size_t>(offset),
                                     sizeof(Record) * static_cast<std::size_t>(count));
    return {reinterpret_cast<const Record*>(bytes.data()), static_cast<std::size_t>(count)};
  }

  std::span<const std::byte> plan_;
};

}  // namespace heddle
