// Ranges of keys that a batch gives to its rows: what is visited for them, what the plan says of them, what is refused.
#include <functional>
#include <limits>

#include "engine/error.h"
#include "planner/explain.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

PlanConfig given_config() {
  PlanConfig config = named_config();
  config.rows_given = true;
  return config;
}

using Range = std::function<RowRange(std::int32_t q_pos)>;

// One request of as many rows as keys.
struct Packed {
  OwnedBatch batch;
  Planner planner;
  PlanBytes bytes;
  PlanSummary summary;

  Packed(std::int32_t length, const MaskBounds& mask, const Range& range, const PlanConfig& config = given_config())
      : batch({length}, {length}, config.page_size),
        planner(config, maxima_of({length}, {length})),
        bytes(planner.layout().plan_bytes) {
    for (std::int32_t q_pos = 0; q_pos < length; ++q_pos) {
      batch.first_keys.push_back(range(q_pos).first);
      batch.end_keys.push_back(range(q_pos).end);
    }
    summary = planner.plan(batch.view(), mask, bytes.span());
  }
  PlanView view() const { return PlanView(bytes.view().first(summary.plan_bytes)); }

  std::int64_t visited_tiles() const {
    std::int64_t tiles = 0;
    for (const Pipeline p : {Pipeline::decode, Pipeline::append})
      for (const WorkItem& item : view().section(p).items)
        tiles += std::int64_t{item.tile_end - item.tile_begin} * (item.kv_head_end - item.kv_head_begin);
    return tiles;
  }
};

Range documents(std::int32_t length) {
  return [length](std::int32_t q_pos) { return RowRange{q_pos / length * length, (q_pos / length + 1) * length}; };
}

std::int64_t causal_tiles(std::int32_t length) {
  PlanConfig config = named_config();
  const Planned planned = plan_of(config, {length}, {length}, {.causal = 1});
  std::int64_t tiles = 0;
  for (const WorkItem& item : PlanView(planned.bytes.view()).section(Pipeline::append).items)
    tiles += std::int64_t{item.tile_end - item.tile_begin} * (item.kv_head_end - item.kv_head_begin);
  return tiles;
}

}  // namespace

TEST_CASE("packed documents cost what they cost alone, evenly spread", "[planner][row_keys]") {
  const Packed packed(16384, {.causal = 1}, documents(4096));
  CHECK(packed.visited_tiles() == 4 * causal_tiles(4096));
  CHECK(packed.summary.max_over_mean[1] < 1.02);
  // Without causal: each of a document's query tiles sees all of it. 32 rows of q make a tile here.
  CHECK(Packed(16384, {}, documents(4096)).visited_tiles() == 16384 / 32 * (4096 / 64) * 8);
}

TEST_CASE("a bidirectional prefix adds its own tiles to a causal mask's", "[planner][row_keys]") {
  const Packed prefix(4096, {}, [](std::int32_t q_pos) { return RowRange{0, std::max(q_pos + 1, 200)}; });
  // Query tiles of 32 tokens: the first four see 4 tiles where causal ones see 1, 1, 2 and 2, the next two 4 where 3, 3;
  // token 192 is in tile 6, which sees 4 either way.
  CHECK(prefix.visited_tiles() == causal_tiles(4096) + (3 + 3 + 2 + 2 + 1 + 1) * 8);
}

TEST_CASE("rows without a key are no part of what their query tile visits", "[planner][row_keys]") {
  const Packed some(640, {}, [](std::int32_t q_pos) { return q_pos % 32 == 5 ? RowRange{320, 321} : RowRange{9, 9}; });
  CHECK(some.visited_tiles() == 640 / 32 * 8);
  for (const WorkItem& item : some.view().section(Pipeline::append).items) CHECK(item.tile_begin == 5);
  const Packed none(640, {}, [](std::int32_t) { return RowRange{0, 0}; });
  CHECK(none.visited_tiles() == 0);
  CHECK(none.summary.items[1] > 0);  // whose output is written all the same
}

TEST_CASE("the plan holds each row's range and what the declared mask leaves of it, where the copy reaches",
          "[planner][row_keys]") {
  const Packed packed(100, {.causal = 1, .window_left = 20}, documents(25));
  const PlanView view = packed.view();
  const std::span<const RowKeys> rows = view.row_keys();
  REQUIRE(rows.size() == 100);
  CHECK((rows[0].begin == 0 && rows[0].end == 1));
  CHECK((rows[24].begin == 4 && rows[24].end == 25));
  CHECK((rows[25].begin == 25 && rows[25].end == 26));
  CHECK((rows[99].begin == 79 && rows[99].end == 100));
  CHECK(view.header().row_keys_offset % 16 == 0);
  CHECK(std::size_t(view.header().row_keys_offset) + rows.size_bytes() <= packed.summary.copy_bytes);
  // A row that its mask leaves nothing.
  const Packed behind(100, {.causal = 1}, [](std::int32_t q_pos) { return RowRange{std::min(q_pos + 1, 100), 100}; });
  for (const RowKeys& row : behind.view().row_keys()) CHECK((row.begin == 100 && row.end == 0));
  CHECK(behind.visited_tiles() == 0);

  PlanConfig plain = named_config();
  CHECK(PlanView(plan_of(plain, {100}, {100}).bytes.view()).row_keys().empty());
  const Maxima maxima{.max_requests = 10, .max_qo_rows = 1000, .max_kv_tokens = 100000};
  CHECK(workspace_layout(given_config(), maxima).plan_bytes == workspace_layout(plain, maxima).plan_bytes + 8 * 1000);
}

TEST_CASE("a row's range is what both leave, at the ends of all integers too", "[planner][row_keys]") {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(), kLeast = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::int32_t> qo = {65600, 9, 40}, kv = {kMost - 65535, 7, 100};  // most keys, which 31 bits do not count with the rows; fewer than rows
  const std::int32_t firsts[] = {0, 3, 60, kMost - 1, kMost}, ends[] = {kLeast, kLeast + 7, -1, 0, 4, 61};
  Planner planner(given_config(), {.max_requests = 3, .max_qo_rows = 65649, .max_kv_tokens = std::int64_t{kMost} + 107});
  PlanBytes bytes(planner.layout().plan_bytes);
  OwnedBatch batch(qo, kv, 16);
  for (std::size_t r = 0; r < qo.size(); ++r) {
    for (std::int32_t i = 0; i < qo[r]; ++i) {
      batch.first_keys.push_back(firsts[i % 5]);
      batch.end_keys.push_back(i % 7 == 6 ? kv[r] : std::min(ends[i % 7], kv[r]));
    }
  }
  for (const MaskBounds& mask : {MaskBounds{}, MaskBounds{.causal = 1}, MaskBounds{.window_left = kMost - 1},
                                 MaskBounds{.causal = 1, .window_left = 2}, MaskBounds{.window_left = 0, .window_right = 50},
                                 MaskBounds{.window_right = kMost - 1}}) {
    planner.plan(batch.view(), mask, bytes.span());
    const std::span<const RowKeys> rows = PlanView(bytes.view()).row_keys();
    REQUIRE(rows.size() == 65649);
    std::vector<std::size_t> wrong;
    for (std::size_t r = 0, row = 0; r < qo.size(); ++r) {
      for (std::int32_t i = 0; i < qo[r]; ++i, ++row) {
        const std::int64_t q_pos = std::int64_t{kv[r]} - qo[r] + i;
        std::int64_t begin = batch.first_keys[row], end = batch.end_keys[row];
        if (mask.window_left != kUnbounded) begin = std::max(begin, q_pos - mask.window_left);
        if (mask.window_right != kUnbounded) end = std::min(end, q_pos + mask.window_right + 1);
        if (mask.causal) end = std::min(end, q_pos + 1);
        if (begin >= end) begin = kv[r], end = 0;
        if (rows[row].begin != begin || rows[row].end != end) wrong.push_back(row);
      }
    }
    INFO("window " << mask.window_left << ", " << mask.window_right << ", causal " << mask.causal);
    CHECK(wrong == std::vector<std::size_t>{});
  }
}

TEST_CASE("explain names given ranges beside the declared mask", "[planner][row_keys][explain]") {
  const Packed packed(640, {.causal = 1}, documents(64));
  CHECK_THAT(explain(given_config(), packed.bytes.view(), 0),
             contains("With a causal mask, a range of keys for each row they visit 160 of 1600 KV tiles"));
}

TEST_CASE("ranges that are missing, too many, outside their request or not asked for", "[planner][row_keys][bad_input]") {
  struct Bad {
    PlanConfig config;
    std::function<void(OwnedBatch&)> spoil;
    const char* message;
  };
  const Bad kBad[] = {
      {given_config(), [](OwnedBatch& b) { b.first_keys.clear(), b.end_keys.clear(); },
       "first_keys has 0 entries; this plan's mask has the rows' ranges given (\"rows\": \"given\"), so its batch of 6 query "
       "rows needs 6."},
      {given_config(), [](OwnedBatch& b) { b.end_keys.pop_back(); },
       "end_keys has 5 entries; this plan's mask has the rows' ranges given (\"rows\": \"given\"), so its batch of 6 query rows "
       "needs 6."},
      {given_config(), [](OwnedBatch& b) { b.first_keys[4] = -1; },
       "Request 2: first_keys[4], of its query row 1, is -1; it must not be negative."},
      {given_config(), [](OwnedBatch& b) { b.end_keys[1] = 1; },
       "Request 1: end_keys[1], of its query row 0, is 1; it must be at most kv_len, 0."},
      {given_config(), [](OwnedBatch& b) { b.end_keys[5] = 34; },
       "Request 2: end_keys[5], of its query row 2, is 34; it must be at most kv_len, 33."},
      {named_config(), [](OwnedBatch&) {},
       "The batch gives 6 first_keys and 6 end_keys, which only the plan of a mask with \"rows\": \"given\" reads."},
      {named_config(), [](OwnedBatch& b) { b.first_keys.clear(); },
       "The batch gives 0 first_keys and 6 end_keys, which only the plan of a mask with \"rows\": \"given\" reads."},
  };
  for (const Bad& bad : kBad) {
    INFO(bad.message);
    OwnedBatch batch({1, 2, 3}, {20, 0, 33}, 16);
    batch.first_keys = {0, 5, 0, 3, 40, 0}, batch.end_keys = {20, 0, -9, 33, 33, 0};
    Planner planner(bad.config, {.max_requests = 4, .max_qo_rows = 100, .max_kv_tokens = 1000});
    PlanBytes bytes(planner.layout().plan_bytes);
    if (bad.config.rows_given) REQUIRE_NOTHROW(planner.plan(batch.view(), {}, bytes.span()));
    const std::vector<std::byte> before(bytes.span().begin(), bytes.span().end());
    bad.spoil(batch);
    CHECK_THROWS_WITH(planner.plan(batch.view(), {}, bytes.span()), bad.message);
    CHECK(std::equal(before.begin(), before.end(), bytes.span().begin()));
  }
}

TEST_CASE("given rows have no sinks beside them and share no prefixes", "[planner][row_keys][bad_input]") {
  CHECK_THROWS_WITH(Packed(64, {.causal = 1, .window_left = 8, .sink = 4}, documents(32)),
                    "The mask's sink is 4; where the rows' ranges are given it must be 0, as a row then sees one range of "
                    "keys.");
  PlanConfig config = given_config();
  config.share_prefixes = true;
  CHECK_THROWS_WITH(Planner(config, {.max_requests = 1, .max_qo_rows = 1, .max_kv_tokens = 1}),
                    "share_prefixes and rows_given exclude each other: rows with ranges of their own see different keys of a "
                    "prefix.");
}
