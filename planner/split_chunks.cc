#include "planner/split_chunks.h"

#include <algorithm>

#include "planner/budget.h"
#include "planner/chunks.h"

namespace heddle {
namespace {

constexpr int kPrecision = 9;  // of the budget

struct ChunkLine {
  std::span<const StreamRun> runs;
  std::int32_t num_heads;
  int num_ctas;
  LineCost cost;
  ChunkRule rule;

  std::int64_t cost_of_chunk(std::int64_t tiles, bool cut) const {
    return cut ? cost.part(tiles) : cost.whole(tiles);
  }
  std::int64_t cost_of_stream(std::int64_t tiles, std::int64_t chunks) const {
    return LineCost::of_tiles(tiles) + chunks * cost_of_chunk(0, chunks > 1);
  }
};

// Ends each CTA's share by a budget and notes where. The last CTA takes whatever is left.
class Filling {
 public:
  Filling(const ChunkLine& line, std::int64_t budget, std::span<ChunkPlace> borders)
      : line_(line), budget_(budget), borders_(borders) {
    borders_[0] = {};
    open_cta();
  }

  Load fill() {
    for (; place_.run < static_cast<std::int32_t>(line_.runs.size()); ++place_.run) {
      const StreamRun& run = line_.runs[static_cast<std::size_t>(place_.run)];
      const Chunks chunks = line_.rule.of(run);
      const std::int64_t stream = line_.cost_of_stream(run.num_tiles(), chunks.count);
      if (stream * line_.num_heads <= room_)
        take(stream * line_.num_heads);
      else
        fill_units(chunks, stream);
      place_.unit = 0;
      place_.first_slot += line_.num_heads * (chunks.count - 1);
    }
    while (cta_ < line_.num_ctas) close_cta();
    return load_;
  }

 private:
  // A run that a border falls into.
  void fill_units(const Chunks& chunks, std::int64_t stream) {
    for (std::int32_t head = 0; head < line_.num_heads;) {
      if (stream <= room_) {
        const auto heads = static_cast<std::int32_t>(
            std::min<std::int64_t>(line_.num_heads - head, room_ / stream));
        take(heads * stream);
        place_.unit += heads * chunks.count;
        head += heads;
      } else {
        fill_stream(chunks);
        ++head;
      }
    }
  }

  void fill_stream(const Chunks& chunks) {
    for (std::int32_t chunk = 0; chunk < chunks.count; ++chunk, ++place_.unit) {
      const std::int64_t cost = line_.cost_of_chunk(chunks.tiles_of(chunk), chunks.count > 1);
      if (cost > room_) {
        close_cta();
        open_cta();
      }
      take(cost);
    }
  }

  void take(std::int64_t cost) {
    room_ -= cost;
    load_.current += cost;
  }
  void open_cta() { room_ = cta_ + 1 < line_.num_ctas ? budget_ : INT64_MAX / 4; }
  void close_cta() {
    load_.close_cta();
    borders_[static_cast<std::size_t>(++cta_)] = place_;
  }

  const ChunkLine& line_;
  const std::int64_t budget_;
  std::span<ChunkPlace> borders_;
  ChunkPlace place_;
  Load load_;
  std::int64_t room_ = 0;
  int cta_ = 0;
};

// Writes the items between two places.
class ShareWriter {
 public:
  ShareWriter(const ChunkLine& line, const SplitOutput& out) : line_(line), out_(out) {}

  // Pieces from the last to the first, so that those which a later CTA joins come first, and the join that takes those of an
  // earlier CTA comes last.
  void write(const ChunkPlace& begin, const ChunkPlace& end) {
    for_each_run_backwards(begin, end, [this](const Part& part) { write_pieces(part, false); });
    write_whole_items(begin, end);
    for_each_run_backwards(begin, end, [this](const Part& part) { write_pieces(part, true); });
  }

  int items = 0;
  int partials = 0;
  int joins = 0;

 private:
  // What a share takes of a run.
  struct Part {
    const StreamRun& run;
    Chunks chunks;
    std::int32_t unit_begin, unit_end;
    std::int32_t first_slot;
  };

  template <typename Visit>
  void for_each_run(const ChunkPlace& begin, const ChunkPlace& end, const Visit& visit) const {
    for (std::int32_t r = begin.run; r <= end.run; ++r) visit_run(r, begin, end, 0, visit);
  }
  template <typename Visit>
  void for_each_run_backwards(const ChunkPlace& begin, const ChunkPlace& end, const Visit& visit) const {
    std::int32_t slot = end.first_slot;
    for (std::int32_t r = end.run; r >= begin.run; --r) {
      if (r < end.run) slot -= line_.num_heads * (line_.rule.of(line_.runs[static_cast<std::size_t>(r)]).count - 1);
      visit_run(r, begin, end, slot, visit);
    }
  }
  template <typename Visit>
  void visit_run(std::int32_t r, const ChunkPlace& begin, const ChunkPlace& end, std::int32_t slot, const Visit& visit) const {
    const std::int32_t first = r == begin.run ? begin.unit : 0;
    if (r == end.run && first == end.unit) return;
    const StreamRun& run = line_.runs[static_cast<std::size_t>(r)];
    const Chunks chunks = line_.rule.of(run);
    visit(Part{run, chunks, first, r == end.run ? end.unit : line_.num_heads * chunks.count, slot});
  }

  // The pieces that join, or those that do not.
  void write_pieces(const Part& part, bool join) {
    const std::int32_t count = part.chunks.count;
    if (count == 1) return;
    for (std::int32_t unit = part.unit_end - 1; unit >= part.unit_begin; --unit) {
      const std::int32_t head = unit / count, chunk = unit % count;
      if ((chunk == count - 1) != join) continue;
      const std::int32_t begin = part.run.item.tile_begin + part.chunks.begin(chunk);
      const std::int32_t slot = part.first_slot + head * (count - 1);
      WorkItem& item = out_.items[items++];
      write_item(item, part.run, head, head + 1, begin, begin + part.chunks.tiles_of(chunk));
      item.partial = join ? slot : slot + chunk;
      item.join = join ? count - 1 : 0;
      ++(join ? joins : partials);
    }
  }

  // Those of a request that has several query tiles here head by head.
  void write_whole_items(const ChunkPlace& begin, const ChunkPlace& end) {
    std::int32_t request = -1;
    int request_items = items;
    const auto close_request = [&] {
      if (items > request_items + 1)
        items = list_by_head(out_.items, request_items, items, line_.num_heads, out_.scratch);
      request_items = items;
    };
    for_each_run(begin, end, [&](const Part& part) {
      if (part.chunks.count > 1) return;
      const WorkItem& item = part.run.item;
      if (item.request != request) close_request();
      request = item.request;
      write_item(out_.items[items++], part.run, part.unit_begin, part.unit_end, item.tile_begin,
                 item.tile_end);
    });
    close_request();
  }

  const ChunkLine& line_;
  const SplitOutput& out_;
};

// Fills the CTAs as evenly as a search finds; leaves the borders there.
Load fill_evenly(const ChunkLine& line, std::span<ChunkPlace> borders) {
  std::int64_t total = 0, largest = 0;
  for (const StreamRun& run : line.runs) {
    const Chunks chunks = line.rule.of(run);
    total += line.cost_of_stream(run.num_tiles(), chunks.count) * line.num_heads;
    largest = std::max(largest, line.cost_of_chunk(chunks.tiles_of(0), chunks.count > 1));
  }
  const std::int64_t mean = (total + line.num_ctas - 1) / line.num_ctas;
  const auto price = [&](std::int64_t budget) { return Filling(line, budget, borders).fill(); };
  // The sum is always enough: a share that ends has less than one chunk of room left.
  const std::int64_t enough = mean + largest;
  const std::int64_t budget = search_budget(line.num_ctas, std::max(mean, largest), enough,
                                            price(enough), kPrecision, price);
  return price(budget);
}

}  // namespace

SplitResult split_by_chunks(std::span<const StreamRun> runs, const PlanConfig& config,
                            Pipeline pipeline, const SplitOutput& out,
                            std::span<ChunkPlace> borders) {
  const PipelineShape& shape = config.of(pipeline);
  const ChunkLine line{runs, config.heads_apart(pipeline), shape.num_ctas, LineCost(shape.cost),
                       ChunkRule(config, pipeline)};
  const Load load = fill_evenly(line, borders);
  ShareWriter writer(line, out);
  out.cta_begin[0] = 0;
  for (int cta = 0; cta < line.num_ctas; ++cta) {
    writer.write(borders[static_cast<std::size_t>(cta)],
                 borders[static_cast<std::size_t>(cta) + 1]);
    out.cta_begin[cta + 1] = writer.items;
  }
  return {writer.items, writer.partials, writer.joins, load.max_over_mean(line.num_ctas), load.busiest};
}

}  // namespace heddle
