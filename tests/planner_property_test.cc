// What every plan must be, seen from the kernels: each visible (row, key) pair is computed once,
// states merge in the order of their keys, no CTA has more than its share and a bound, nothing lies
// outside the workspace, and equal lengths give equal bytes. planner_plan_test.cc looks at the
// records instead.
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "planner/cost.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/planner_random.h"

using namespace heddle_tests;

namespace {

// Plain ifs: an assertion of Catch2 for every pair would take all the time.
void demand(bool is_so, const char* what) {
  if (!is_so) throw std::runtime_error(what);
}

using StreamKey = std::tuple<int, int, int>;  // request, row_begin, (first) kv head
struct Piece {
  int cta, place;
  WorkItem item;
};

struct Streams {
  std::map<StreamKey, std::vector<Piece>> pieces;

  Streams(const PlanView::Section& section, int heads_abreast) {
    int place = 0;
    for (int cta = 0; cta < section.num_ctas(); ++cta)
      for (const WorkItem& item : section.items_of(cta)) {
        demand(item.kv_head_begin % heads_abreast == 0 && item.kv_head_end % heads_abreast == 0, "heads read abreast are torn apart");
        for (int head = item.kv_head_begin; head < item.kv_head_end; head += heads_abreast)
          pieces[{item.request, item.row_begin, head}].push_back({cta, place, item});
        ++place;
      }
  }
};

// How often each tile of the sequence is computed for the rows of a stream.
std::vector<int> visits_of(const std::vector<Piece>& pieces, int num_tiles) {
  std::vector<int> visits(std::size_t(num_tiles), 0);
  for (const Piece& piece : pieces)
    for (int t = piece.item.tile_begin; t < piece.item.tile_end; ++t) {
      const int tile = sequence_tile(piece.item, t);
      demand(tile >= 0 && tile < num_tiles, "a tile lies outside the request");
      ++visits[std::size_t(tile)];
    }
  return visits;
}

// Every pair that the mask keeps is in a tile that is computed once for its row. Key by key.
void check_pairs(const Case& c, Pipeline pipeline, const Streams& streams) {
  const PipelineShape& shape = c.config.of(pipeline);
  std::size_t found = 0;
  for (int r = 0; r < int(c.qo.size()); ++r) {
    const int rows = c.qo[r] * c.config.group,
              num_tiles = (c.kv[r] + shape.tile_kv - 1) / shape.tile_kv;
    const bool decode = c.config.pipeline[0].present && rows <= c.config.max_decode_rows;
    if (decode != (pipeline == Pipeline::decode)) continue;
    for (int begin = 0; begin < rows; begin += shape.tile_rows)
      for (int head = 0; head < c.config.num_kv_heads; head += shape.heads_abreast, ++found) {
        const auto stream = streams.pieces.find({r, begin, head});
        demand(stream != streams.pieces.end(), "rows are missing");
        const std::vector<int> visits = visits_of(stream->second, num_tiles);
        const int end = std::min(rows, begin + shape.tile_rows);
        demand(stream->second[0].item.num_rows == end - begin, "a query tile has other rows");
        if (head > 0 && visits == visits_of(streams.pieces.at({r, begin, head - shape.heads_abreast}), num_tiles))
          continue;
        for (int token = begin / c.config.group; token <= (end - 1) / c.config.group; ++token) {
          const SeenKeys seen(c, r, token);
          for (int key = 0; key < c.kv[r]; ++key)
            if (seen.contain(key))
              demand(visits[std::size_t(key / shape.tile_kv)] == 1,
                     "a visible pair is not computed exactly once");
        }
      }
  }
  demand(found == streams.pieces.size(), "there are items of no row");
}

// Pieces in the order of their keys are in that of their slots; the last one joins all others, and stands behind them: in
// the same CTA, or in one of higher number.
void check_merges(const Streams& streams, int max_partials) {
  std::set<int> slots;
  for (const auto& [key, in_order_of_ctas] : streams.pieces) {
    std::vector<Piece> pieces = in_order_of_ctas;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.item.tile_begin < b.item.tile_begin; });
    if (pieces.size() == 1) {
      demand(pieces[0].item.partial == -1, "a whole item has a slot");
      continue;
    }
    const WorkItem& last = pieces.back().item;
    demand(last.join == int(pieces.size()) - 1, "a join takes another number of states");
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const WorkItem& item = pieces[i].item;
      demand(i == 0 || pieces[i - 1].item.tile_end <= item.tile_begin,
             "pieces are not in the order of their keys");
      if (i + 1 == pieces.size()) break;
      demand(pieces[i].place < pieces.back().place, "a join stands in front of what it waits for");
      demand(item.join == 0 && item.partial == last.partial + int(i),
             "slots are not in the order of their keys");
      demand(item.partial >= 0 && item.partial < max_partials, "a slot lies outside the workspace");
      demand(slots.insert(item.partial).second, "a slot is used twice");
    }
  }
}

// An even share of what the work costs uncut, and what may come on top: an item on either side that
// is not worth a cut, a piece's own price, and where chunks are dealt whole, a chunk.
void check_loads(const Case& c, Pipeline pipeline, const PlanView::Section& section,
                 const Streams& streams, double said) {
  const CostModel& cost = c.config.of(pipeline).cost;
  double uncut = 0, chunk = 0;
  for (const auto& [key, pieces] : streams.pieces) {
    uncut += cost.per_item;
    for (const Piece& piece : pieces) {
      uncut += cost.per_tile * (piece.item.tile_end - piece.item.tile_begin);
      chunk = std::max(chunk, cost.per_item + cost.per_partial +
                                  cost.per_tile * (piece.item.tile_end - piece.item.tile_begin));
    }
  }
  const std::vector<double> loads = cta_costs(c.config.of(pipeline), section);
  const double busiest = *std::max_element(loads.begin(), loads.end());
  double all = 0;
  for (const double load : loads) all += load;
  const double share = (c.config.batch_invariant ? all : uncut) / double(loads.size());
  const double border = cost.per_item + cost.per_partial + cost.per_tile;
  demand(busiest <= 1.01 * share + 3 * border + (c.config.batch_invariant ? chunk : 0),
         "a CTA has more than its bound");
  // (Where an item is free, the planner counts a thousandth of a tile for it all the same.)
  demand(all == 0 || cost.per_item == 0 ||
             std::abs(busiest * double(loads.size()) / all - said) < 0.05 * said,
         "max_over_mean is not what the CTAs have");
}

// The plan of `c` in memory that held `dirt`; what lies behind the room it was given must stay.
std::vector<std::byte> bytes_of_plan(const Case& c, std::byte dirt, PlanSummary& summary,
                                     WorkspaceLayout& layout) {
  Planner planner(c.config, maxima_of(c.qo, c.kv));
  layout = planner.layout();
  PlanBytes memory(layout.plan_bytes + 256);
  std::fill(memory.span().begin(), memory.span().end(), dirt);
  OwnedBatch batch(c.qo, c.kv, c.config.page_size, c.table);
  if (c.config.rows_given) batch.give_ranges(c.qo, c.kv);
  summary = planner.plan(batch.view(), c.mask, memory.span().first(layout.plan_bytes));
  for (const std::byte b : memory.view().subspan(layout.plan_bytes))
    demand(b == dirt, "something was written behind the room");
  demand(summary.copy_bytes <= summary.plan_bytes && summary.plan_bytes <= layout.plan_bytes,
         "the plan is larger than its room");
  return {memory.view().begin(), memory.view().begin() + std::ptrdiff_t(summary.plan_bytes)};
}

void check_sections(const WorkspaceLayout& layout, const PlanConfig& config) {
  std::size_t end = layout.plan_bytes;
  for (int p = 0; p < kNumPipelines; ++p) {
    const auto& s = layout.section[p];
    const std::size_t rows =
        std::size_t(s.max_partials) * std::size_t(config.pipeline[p].tile_rows);
    if (rows == 0) continue;
    demand(s.partial_o >= end &&
               s.partial_lse >= s.partial_o + rows * std::size_t(config.head_dim) * 4,
           "sections overlap");
    end = s.partial_lse + rows * 4;
  }
  demand(end <= layout.total_bytes && layout.slots_end <= layout.total_bytes,
         "a section ends outside the workspace");
}

// Keys that are transformed ahead: within their room, one request behind the other, and of each what some row sees.
void check_transformed_keys(const Case& c, const PlanView& view, const WorkspaceLayout& layout) {
  std::int64_t row = 0;
  std::vector<std::int32_t> key_rows(view.transformed_keys().empty() ? 0 : c.qo.size(), kNoKeyRow);
  for (const TransformedKeys& keys : view.transformed_keys()) {
    const std::int32_t qo_len = c.qo[std::size_t(keys.request)];
    demand(keys.row == row && keys.key_begin < keys.key_end, "transformed keys do not follow each other");
    key_rows[std::size_t(keys.request)] = keys.row - keys.key_begin;
    row += keys.key_end - keys.key_begin;
    std::vector<bool> seen_by_some(std::size_t(keys.kv_len));
    for (int i = 0; i < qo_len; ++i) {
      const SeenKeys seen(c, keys.request, i);
      for (int key = 0; key < keys.kv_len; ++key)
        if (seen.contain(key)) seen_by_some[std::size_t(key)] = true;
    }
    for (int key = 0; key < keys.kv_len; ++key)
      demand(seen_by_some[std::size_t(key)] == (key >= keys.key_begin && key < keys.key_end),
             "a visible key is not transformed, or one that no row sees is");
  }
  demand(row <= layout.max_transformed_keys, "transformed keys lie outside the workspace");
  demand(key_rows == std::vector<std::int32_t>(view.key_rows().begin(), view.key_rows().end()),
         "requests find their keys elsewhere");
}

void check_plan(const Case& c) {
  PlanSummary summary, again;
  WorkspaceLayout layout;
  const std::vector<std::byte> bytes = bytes_of_plan(c, std::byte{0xa5}, summary, layout);
  demand(bytes_of_plan(c, std::byte{0x5a}, again, layout) == bytes,
         "the same lengths give other bytes");
  check_sections(layout, c.config);
  PlanBytes aligned(bytes.size());
  std::memcpy(aligned.span().data(), bytes.data(), bytes.size());
  const PlanView view(aligned.view().first(bytes.size()));
  check_transformed_keys(c, view, layout);
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    const int i = static_cast<int>(p);
    const auto section = view.section(p);
    const Streams streams(section, c.config.of(p).heads_abreast);
    check_pairs(c, p, streams);
    check_merges(streams, layout.section[i].max_partials);
    if (section.num_ctas() > 0) check_loads(c, p, section, streams, summary.max_over_mean[i]);
  }
}

// Shapes that random_case never draws: many requests, many CTAs, and long ones among short ones.
Case large_case(Random& random) {
  Case c = random_case(random);
  c.config.num_kv_heads = pick(random, {1, 8});
  c.config.pipeline[0].heads_abreast = random_heads_abreast(random, c.config.num_kv_heads);
  c.config.pipeline[0].num_ctas = pick(random, {1, 132, 264});
  c.config.pipeline[1].num_ctas = pick(random, {1, 132, 264});
  const bool append = c.config.pipeline[1].present;
  const int requests = draw(random, 1, 200), kv_most = pick(random, {0, 200, 2000});
  c.qo.clear(), c.kv.clear();
  for (int r = 0; r < requests; ++r) {
    c.qo.push_back(append && draw(random, 0, 9) == 0
                       ? draw(random, 0, 40)
                       : std::min(draw(random, 0, 1), c.config.max_decode_rows / c.config.group));
    c.kv.push_back(draw(random, 0, 30) == 0 ? draw(random, 0, 20000) : draw(random, 0, kv_most));
  }
  return c;
}

}  // namespace

TEST_CASE("every visible pair once, merges in order, no CTA above its bound, nothing outside",
          "[planner][property]") {
  const int plans = plans_to_try(80000);
  int wrong = 0;
  for (int i = 0; i < plans && wrong < 10; ++i) {
    Random random(static_cast<unsigned>(i) + 500'000'000u);
    const Case c = i % 25 == 0 ? large_case(random) : random_case(random);
    try {
      check_plan(c);
    } catch (const std::exception& error) {
      ++wrong;
      UNSCOPED_INFO(fmt::format("plan {}: {} (qo [{}] kv [{}])", i, error.what(),
                                fmt::join(c.qo, ","), fmt::join(c.kv, ",")));
    }
  }
  CHECK(wrong == 0);
}
