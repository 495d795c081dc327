#include "planner/explain.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "engine/error.h"
#include "planner/cost.h"
#include "planner/in_step.h"
#include "planner/plan_view.h"
#include "planner/prefixes.h"
#include "planner/streams.h"

namespace heddle {
namespace {

// "1 item", "3 items".
std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Smallest and largest of what was seen.
struct Extent {
  std::int64_t low = std::numeric_limits<std::int64_t>::max();
  std::int64_t high = std::numeric_limits<std::int64_t>::min();
  void add(std::int64_t value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string words() const {
    return low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high);
  }
};

// One request's share of a work list.
struct Share {
  std::int64_t streams = 0;  // uncut and cut ones
  std::int64_t items = 0;
  std::int64_t pieces = 0;
  std::int64_t cut_streams = 0;
  std::int64_t visited = 0;  // KV tiles over all streams
  std::set<int> query_tiles;
  std::set<int> ctas;
  Extent piece_tiles, pieces_of_stream;
  bool has_gap = false;
  double cost = 0;
};

Share share_of(const PlanConfig& config, Pipeline pipeline, const PlanView::Section& section,
               int request) {
  Share share;
  for (int cta = 0; cta < section.num_ctas(); ++cta) {
    for (const WorkItem& item : section.items_of(cta)) {
      if (item.request != request) continue;
      const int heads = (item.kv_head_end - item.kv_head_begin) / config.of(pipeline).heads_abreast;
      const std::int64_t tiles = item.tile_end - item.tile_begin;
      share.items += 1;
      share.visited += heads * tiles;
      share.query_tiles.insert(item.row_begin);
      share.ctas.insert(cta);
      share.has_gap |= item.gap_tiles > 0;
      share.cost += cost_of(config.of(pipeline), item);
      if (item.partial < 0) {
        share.streams += heads;
        continue;
      }
      share.pieces += 1;
      share.piece_tiles.add(tiles);
      if (item.join == 0) continue;
      share.cut_streams += 1;
      share.pieces_of_stream.add(item.join + 1);
    }
  }
  share.streams += share.cut_streams;
  return share;
}

std::string mask_words(const PlanHeader& header) {
  const MaskBounds& mask = header.mask;
  std::string words = mask.causal ? "a causal mask" : "";
  const auto add = [&words](std::string_view name, int value) {
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name, value);
  };
  if (mask.window_left != kUnbounded) add("window_left", mask.window_left);
  if (mask.window_right != kUnbounded) add("window_right", mask.window_right);
  if (mask.sink > 0) add("sink", mask.sink);
  if (header.row_keys_offset != 0)
    words += fmt::format("{}a range of keys for each row", words.empty() ? "" : ", ");
  return words.empty() ? "no declared mask" : words;
}

std::string tiles_words(const PlanConfig& config, const PipelineShape& shape, const PlanView& view,
                        const RequestRecord& record, const Share& share) {
  const std::int64_t all = (std::int64_t{record.kv_len} + shape.tile_kv - 1) / shape.tile_kv;
  const auto query_tiles = static_cast<std::int64_t>(share.query_tiles.size());
  std::string words = fmt::format(
      "Its {} of up to {} rows for each of {}{} make {}. With {} they visit {} of {} KV tiles of {} "
      "keys{}. ",
      counted(query_tiles, "query tile"), shape.tile_rows, counted(config.num_kv_heads, "kv head"),
      shape.heads_abreast > 1 ? fmt::format(", of which a CTA reads {} abreast,", shape.heads_abreast) : "",
      counted(share.streams, "stream"), mask_words(view.header()), share.visited,
      all * share.streams, shape.tile_kv,
      share.has_gap ? ", with a gap between the sink keys and the window" : "");
  if (share.visited == 0) words += "Its rows see no key, so they get output 0 and lse -inf. ";
  return words;
}

// Which of its keys are read once for several requests, the parts of one prefix together.
std::string prefix_words(const PlanView& view, const RequestRecord& record) {
  std::array<const WorkItem*, kMaxPrefixStates> states{};
  for (const WorkItem& item : view.section(Pipeline::append).items)
    if (item.request < 0 && record.qo_begin >= item.qo_begin && record.qo_begin < item.qo_begin + item.qo_len)
      states[static_cast<std::size_t>(prefix_state(item))] = &item;
  const auto is_same = [](const WorkItem* a, const WorkItem* b) {
    return b != nullptr && a->qo_begin == b->qo_begin && a->qo_len == b->qo_len;
  };
  std::string words;
  for (auto part = states.begin(); part != states.end() && *part != nullptr;) {
    const WorkItem* const first = *part;
    std::int32_t keys = 0;
    for (; part != states.end() && is_same(first, *part); ++part) keys += (*part)->kv_len - (*part)->qo_len;
    words += fmt::format("{} {} of its keys are read once for {}, from request {} on", words.empty() ? "The first" : ", the next",
                         keys, counted(first->qo_len, "query row"), first_request(*first));
  }
  return words.empty() ? "" : words + ", by the append pipeline; it joins their states with that of the rest. ";
}

std::string place_words(const Share& share) {
  return fmt::format("{} of the work list on {} (CTA {}{})", counted(share.items, "item"),
                     counted(static_cast<std::int64_t>(share.ctas.size()), "CTA"),
                     *share.ctas.begin(),
                     share.ctas.size() > 1 ? fmt::format(" to {}", *share.ctas.rbegin()) : "");
}

// What its own lengths made of it.
std::string chunk_words(const Share& share) {
  const std::string words = "The plan is batch-invariant, so only its own lengths decide on cuts. ";
  if (share.cut_streams == 0)
    return words + fmt::format("They are too short for any. It is {}.", place_words(share));
  return words + fmt::format(
                     "They cut {} of its {}, into {} pieces each, of {} KV tiles; the CTA with the "
                     "last piece merges them all in the order of the keys. It is {}, {} of them "
                     "pieces.",
                     share.cut_streams, counted(share.streams, "stream"),
                     share.pieces_of_stream.words(), share.piece_tiles.words(), place_words(share),
                     share.pieces);
}

// Where the borders between CTAs fell, and why.
std::string cut_words(const PlanConfig& config, Pipeline pipeline, const PlanView::Section& section,
                      const Share& share) {
  const PipelineShape& shape = config.of(pipeline);
  const std::vector<double> costs = cta_costs(shape, section);
  const double most = *std::max_element(costs.begin(), costs.end());
  const int rows = pipeline == Pipeline::decode ? heads_in_step(config, section.num_streams() / shape.heads_abreast) : 1;
  std::string words = fmt::format(
      "{}, of which each of the {} CTAs takes at most {:.1f} KV tiles of "
      "time; this request is "
      "worth {:.2f} such shares. ",
      rows == 1 ? "All work lies in one row"
                : fmt::format("All work lies in {} rows, as many heads of a request side by side to be read in step", rows),
      section.num_ctas(), most / shape.cost.per_tile, share.cost / most);
  if (share.cut_streams == 0) {
    return words +
           fmt::format(
               "No border between CTAs fell inside a stream, or the piece to cut off would not "
               "have "
               "been worth its own cost; so nothing was cut and nothing is merged. It is {}.",
               place_words(share));
  }
  return words + fmt::format(
                     "Borders between CTAs cut {} of its {}, into {} pieces each, of {} KV tiles; "
                     "the CTA with "
                     "the last piece merges them all in the order of the keys. It is {}, {} of "
                     "them pieces.",
                     share.cut_streams, counted(share.streams, "stream"),
                     share.pieces_of_stream.words(), share.piece_tiles.words(), place_words(share),
                     share.pieces);
}

}  // namespace

std::string explain(const PlanConfig& config, std::span<const std::byte> plan, int request) {
  const PlanView view(plan);
  if (request < 0 || request >= view.header().num_requests) {
    fail(ErrorKind::invalid_argument,
         "The plan has no request {}; it has {} of them, counted from 0.", request,
         view.header().num_requests);
  }
  const RequestRecord& record = view.requests()[static_cast<std::size_t>(request)];
  std::string words =
      fmt::format("Request {} has {} and {}. ", request, counted(record.qo_len, "query row"),
                  counted(record.kv_len, "key"));
  if (record.qo_len == 0)
    return words + "Without query rows there is nothing to do, so it has no work item.";

  const Pipeline pipeline = pipeline_of(config, record.qo_len);
  const PipelineShape& shape = config.of(pipeline);
  const std::int64_t rows = std::int64_t{record.qo_len} * config.group;
  const bool decode = pipeline == Pipeline::decode;
  words += fmt::format("With {} to a kv head that is {}, {}, so the {} pipeline runs it. ",
                       counted(config.group, "query head"), counted(rows, "packed row"),
                       !config.of(Pipeline::decode).present ? "and there is no decode pipeline"
                       : decode ? fmt::format("at most {}", config.max_decode_rows)
                                : fmt::format("more than {}", config.max_decode_rows),
                       decode ? "decode" : "append");
  const PlanView::Section section = view.section(pipeline);
  const Share share = share_of(config, pipeline, section, request);
  words += prefix_words(view, record);
  words += tiles_words(config, shape, view, record, share);
  return words + (config.batch_invariant ? chunk_words(share) : cut_words(config, pipeline, section, share));
}

}  // namespace heddle
