// The work list by property: whatever the batch, every visible tile is covered once and every
// record is in order. Counts by brute force, key by key, from the definition of the mask.
#include <map>
#include <set>
#include <tuple>

#include "planner/plan_view.h"
#include "templates/append_rows.h"
#include "tests/catch.h"
#include "tests/planner_random.h"

using namespace heddle_tests;

namespace {

// The tiles of the sequence that a query tile must visit.
std::set<int> tiles_to_visit(const Case& c, int r, int row_begin, int num_rows, int tile_kv) {
  std::set<int> tiles;
  for (int token = row_begin / c.config.group; token <= (row_begin + num_rows - 1) / c.config.group; ++token) {
    const SeenKeys seen(c, r, token);
    for (int key = 0; key < c.kv[r]; ++key) {
      if (seen.contain(key)) tiles.insert(key / tile_kv);
    }
  }
  // Given ranges may leave tiles between them that no row sees; a query tile visits one stretch of tiles.
  if (c.config.rows_given && !tiles.empty())
    for (int tile = *tiles.begin(); tile < *tiles.rbegin(); ++tile) tiles.insert(tile);
  return tiles;
}

using StreamKey = std::tuple<int, int, int>;  // request, row_begin, kv head
struct Visit {
  int num_rows;
  std::vector<int> tiles;           // of the sequence, in the order visited
  std::map<int, WorkItem> parts;     // by slot
  bool whole = false;
  int last_cta = 0, joined_by = -1;  // of its pieces; of the one that joins
};

// Order within a CTA: pieces that wait for others stand behind all else.
int place_of(const WorkItem& item) { return item.join > 0 ? 1 : 0; }

// Reads all items of a pipeline; checks each for itself.
std::map<StreamKey, Visit> visits_of(const Case& c, const PlanView::Section& section, const PipelineShape& shape,
                                     const WorkspaceLayout::Section& layout) {
  std::map<StreamKey, Visit> visits;
  const OwnedBatch batch(c.qo, c.kv, c.config.page_size, c.table);
  for (int cta = 0; cta < section.num_ctas(); ++cta) {
    int partials = 0, joins = 0, place = 0;
    for (const WorkItem& item : section.items_of(cta)) {
      const int r = item.request;
      const int rows = c.qo.at(r) * c.config.group;
      REQUIRE(item.num_rows == std::min(shape.tile_rows, rows - item.row_begin));
      REQUIRE(item.row_begin % shape.tile_rows == 0);
      REQUIRE((item.num_rows >= 1 && item.tile_begin >= 0 && item.tile_begin <= item.tile_end));
      REQUIRE((item.kv_head_begin >= 0 && item.kv_head_begin < item.kv_head_end && item.kv_head_end <= c.config.num_kv_heads));
      REQUIRE((item.qo_len == c.qo[r] && item.kv_len == c.kv[r]));
      REQUIRE((item.qo_begin == batch.qo_indptr[r] && item.kv_offset == (c.table ? r * batch.stride : batch.kv_indptr[r])));
      REQUIRE((item.partial >= 0 || item.join == 0));
      REQUIRE(place_of(item) >= place);  // so that nothing waits in front of what others wait for
      place = place_of(item);
      joins += item.join > 0;
      if (item.partial >= 0) {
        partials += item.join == 0;
        REQUIRE(item.partial + item.join <= layout.max_partials);
        REQUIRE(item.kv_head_end == item.kv_head_begin + shape.heads_abreast);
        REQUIRE(item.tile_begin < item.tile_end);
      }
      for (int head = item.kv_head_begin; head < item.kv_head_end; ++head) {
        Visit& visit = visits[{r, item.row_begin, head}];
        visit.num_rows = item.num_rows;
        REQUIRE_FALSE(visit.whole);
        if (item.partial < 0) {
          REQUIRE(visit.parts.empty());
          visit.whole = true;
        } else {
          // The last piece stands behind the slots that it joins.
          REQUIRE(visit.parts.emplace(item.partial + item.join, item).second);
          visit.last_cta = cta;
          if (item.join > 0) visit.joined_by = cta;
        }
        for (int t = item.tile_begin; t < item.tile_end; ++t) visit.tiles.push_back(sequence_tile(item, t));
      }
    }
    if (!c.config.batch_invariant) REQUIRE((partials <= 1 && joins <= 1));
  }
  return visits;
}

// Heads that are read abreast are cut alike, and their pieces share slots.
void check_abreast(const std::map<StreamKey, Visit>& visits, int heads_abreast) {
  for (const auto& [key, visit] : visits) {
    const auto& [request, row_begin, head] = key;
    const Visit& first = visits.at({request, row_begin, head - head % heads_abreast});
    REQUIRE((visit.whole == first.whole && visit.parts.size() == first.parts.size() && visit.last_cta == first.last_cta));
    for (auto own = visit.parts.begin(), its = first.parts.begin(); own != visit.parts.end(); ++own, ++its)
      REQUIRE((own->first == its->first && own->second.tile_begin == its->second.tile_begin && own->second.tile_end == its->second.tile_end));
  }
}

// Each cut stream has neighbouring slots in the order of its keys; the last piece alone joins them.
void check_joins(const std::map<StreamKey, Visit>& visits, int heads_abreast, int partials, int joins) {
  std::set<int> slots;
  for (const auto& [key, visit] : visits) {
    if (visit.whole || std::get<2>(key) % heads_abreast != 0) continue;
    --joins;
    REQUIRE(visit.parts.size() >= 2);
    REQUIRE(visit.joined_by == visit.last_cta);
    int slot = visit.parts.begin()->first, tile = -1;
    for (const auto& [place, piece] : visit.parts) {
      REQUIRE(place == slot++);
      REQUIRE(piece.tile_begin > tile);
      tile = piece.tile_begin;
      const bool last = place == visit.parts.rbegin()->first;
      REQUIRE(piece.join == (last ? static_cast<int>(visit.parts.size()) - 1 : 0));
      if (!last) REQUIRE(slots.insert(place).second);
    }
  }
  REQUIRE(joins == 0);
  REQUIRE(static_cast<int>(slots.size()) == partials);
}

void check_coverage(const Case& c, Pipeline pipeline, std::map<StreamKey, Visit> visits) {
  const PipelineShape& shape = c.config.of(pipeline);
  for (int r = 0; r < static_cast<int>(c.qo.size()); ++r) {
    const int rows = c.qo[r] * c.config.group;
    const bool decode = c.config.pipeline[0].present && rows <= c.config.max_decode_rows;
    if (decode != (pipeline == Pipeline::decode)) continue;
    for (int row = 0; row < rows; row += shape.tile_rows) {
      const std::set<int> wanted = tiles_to_visit(c, r, row, std::min(shape.tile_rows, rows - row), shape.tile_kv);
      for (int head = 0; head < c.config.num_kv_heads; ++head) {
        auto found = visits.extract({r, row, head});
        REQUIRE_FALSE(found.empty());
        std::vector<int>& tiles = found.mapped().tiles;
        std::sort(tiles.begin(), tiles.end());
        REQUIRE(tiles == std::vector<int>(wanted.begin(), wanted.end()));
      }
    }
  }
  REQUIRE(visits.empty());
}

// What the summary says that tensors must reach, from the records.
void check_reach(const Case& c, const PlanSummary& summary, std::span<const RequestRecord> requests) {
  std::int64_t rows = 0, longest = 0, entries = 0;
  for (const RequestRecord& r : requests) {
    rows += r.qo_len;
    longest = std::max<std::int64_t>(longest, r.kv_len);
    const int page = std::max(c.config.page_size, 1);
    if (r.kv_len > 0) entries = std::max(entries, r.kv_offset + (r.kv_len - 1) / page + 1);
  }
  REQUIRE(summary.num_qo_rows == rows);
  REQUIRE(summary.max_kv_len == longest);
  REQUIRE(summary.num_kv_rows == (c.config.page_size == 0 ? entries : 0));
  REQUIRE(summary.num_indices == (c.config.page_size == 0 ? 0 : entries));
}

void check_records(const Case& c, const Planned& planned, PlanView& view) {
  const PlanHeader& header = view.header();
  REQUIRE(header.num_requests == static_cast<int>(c.qo.size()));
  REQUIRE((header.mask.causal == c.mask.causal && header.mask.sink == c.mask.sink));
  REQUIRE(header.requests_offset % 16 == 0);
  const OwnedBatch batch(c.qo, c.kv, c.config.page_size, c.table);
  for (int r = 0; r < header.num_requests; ++r) {
    const RequestRecord& record = view.requests()[r];
    REQUIRE(record.kv_offset == (c.table ? r * batch.stride : batch.kv_indptr[r]));
    REQUIRE((record.qo_begin == batch.qo_indptr[r] && record.qo_len == c.qo[r] && record.kv_len == c.kv[r]));
  }
  std::size_t end = 0;
  for (int p = 0; p < kNumPipelines; ++p) {
    const PlanSection& s = header.section[p];
    if (!c.config.pipeline[p].present) {
      REQUIRE((s.num_ctas == 0 && s.num_items == 0));
      continue;
    }
    REQUIRE(s.num_ctas == c.config.pipeline[p].num_ctas);
    REQUIRE((s.cta_begin_offset == static_cast<int>(planned.layout.section[p].cta_begin) && s.items_offset % 64 == 0));
    const auto section = view.section(static_cast<Pipeline>(p));
    REQUIRE(section.cta_begin[0] == 0);
    REQUIRE(section.cta_begin[s.num_ctas] == s.num_items);
    REQUIRE(std::is_sorted(section.cta_begin.begin(), section.cta_begin.end()));
    REQUIRE(planned.summary.items[p] == s.num_items);
    end = s.items_offset + sizeof(WorkItem) * s.num_items;
  }
  check_reach(c, planned.summary, view.requests());
  REQUIRE(planned.summary.copy_bytes == end);
  REQUIRE(planned.summary.plan_bytes <= planned.layout.plan_bytes);
}

// Each query row has one item that stores its key, for each kv head; its own request's.
void check_new_rows(const Case& c, const PlanView& view) {
  std::map<std::tuple<int, int, int>, int> stored;
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    for (const WorkItem& item : view.section(p).items) {
      const NewRows rows = new_rows(item, c.config.group);
      REQUIRE(item.qo_begin == view.requests()[item.request].qo_begin);
      REQUIRE(item.kv_offset == view.requests()[item.request].kv_offset);
      for (int row = rows.begin; row < rows.end; ++row)
        for (int head = item.kv_head_begin; head < item.kv_head_end; ++head) ++stored[{item.request, row, head}];
    }
  }
  std::size_t wanted = 0;
  for (int r = 0; r < int(c.qo.size()); ++r)
    for (int row = std::max(0, c.qo[r] - c.kv[r]); row < c.qo[r]; ++row)
      for (int head = 0; head < c.config.num_kv_heads; ++head, ++wanted) REQUIRE(stored[{r, row, head}] == 1);
  REQUIRE(stored.size() == wanted);
}

PlanSummary check_plan(const Case& c) {
  Planned planned = plan_of(c.config, c.qo, c.kv, c.mask, c.table);
  PlanView view(planned.bytes.span().first(planned.summary.plan_bytes));
  check_records(c, planned, view);
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    const auto section = view.section(p);
    const auto visits = visits_of(c, section, c.config.of(p), planned.layout.section[static_cast<int>(p)]);
    check_abreast(visits, c.config.of(p).heads_abreast);
    check_joins(visits, c.config.of(p).heads_abreast, planned.summary.partials[static_cast<int>(p)],
                planned.summary.joins[static_cast<int>(p)]);
    check_coverage(c, p, visits);
  }
  check_new_rows(c, view);
  return planned.summary;
}

// Where the streams of a request are cut, in visited tiles.
std::map<std::pair<int, int>, std::vector<int>> cuts_of(const PlanView& view, int request) {
  std::map<std::pair<int, int>, std::vector<int>> cuts;  // by query tile and head
  for (const Pipeline p : {Pipeline::decode, Pipeline::append}) {
    for (const WorkItem& item : view.section(p).items) {
      if (item.request != request) continue;
      for (int head = item.kv_head_begin; head < item.kv_head_end; ++head)
        cuts[{item.row_begin, head}].push_back(item.tile_end);
    }
  }
  for (auto& [stream, ends] : cuts) std::sort(ends.begin(), ends.end());
  return cuts;
}

}  // namespace

TEST_CASE("every plan covers each visible tile exactly once", "[planner][plan]") {
  const int plans = plans_to_try(4000);
  int cut[kNumPipelines] = {};  // batch-invariant plans that cut streams
  for (int i = 0; i < plans; ++i) {
    Random random(static_cast<unsigned>(i));
    INFO("plan " << i);
    const Case c = random_case(random);
    const PlanSummary summary = check_plan(c);
    for (int p = 0; p < kNumPipelines; ++p) cut[p] += c.config.batch_invariant && summary.joins[p] > 0;
  }
  CHECK(cut[0] > plans / 50);
  CHECK(cut[1] > plans / 200);
}

TEST_CASE("batch_invariant: a request is cut at the same tiles in every batch", "[planner][plan]") {
  int cut = 0;
  for (int i = 0; i < 300; ++i) {
    INFO("request " << i);
    Random random(static_cast<unsigned>(i));
    Case alone = random_case(random);
    alone.config.batch_invariant = true;
    alone.qo = {draw(random, 1, alone.config.pipeline[1].present ? 90 : 1)};
    alone.kv = {draw(random, 0, 60000)};
    if (!alone.config.pipeline[1].present) alone.config.group = 1;
    Planned planned = plan_of(alone.config, alone.qo, alone.kv, alone.mask, alone.table);
    const auto wanted = cuts_of(PlanView(planned.bytes.span()), 0);
    cut += planned.summary.joins[0] + planned.summary.joins[1] > 0;
    for (int batch = 0; batch < 5; ++batch) {
      Case c = alone;
      const int others = draw(random, 0, 30), at = draw(random, 0, others);
      c.qo.clear(), c.kv.clear();
      for (int r = 0; r <= others; ++r) {
        c.qo.push_back(r == at ? alone.qo[0] : draw(random, 0, 1));
        c.kv.push_back(r == at ? alone.kv[0] : draw(random, 0, 20000));
      }
      planned = plan_of(c.config, c.qo, c.kv, c.mask, c.table);
      REQUIRE(cuts_of(PlanView(planned.bytes.span()), at) == wanted);
    }
  }
  CHECK(cut > 100);
}
