// Shared prefixes in the plan: groups are exact, and every row sees every key exactly once.
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <tuple>

#include "planner/layout.h"
#include "planner/plan_view.h"
#include "planner/prefixes.h"
#include "tests/catch.h"
#include "tests/planner_random.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

PlanConfig sharing_config(double cost = 0) {
  PlanConfig config = named_config(7, 5);
  config.pipeline[0].tile_kv = 96;
  // A few keys are worth sharing.
  config.pipeline[0].cost.per_partial = 0.02;
  config.pipeline[1].cost = {.per_item = 0.1, .per_tile = 0.2, .per_partial = 0.1};
  config.share_prefixes = true;
  config.sharing_cost = cost;
  return config;
}

PlanConfig random_sharing_config(Random& random) {
  PlanConfig config = sharing_config();
  config.num_kv_heads = pick(random, {1, 2, 8});
  PipelineShape& decode = config.pipeline[0];
  decode.heads_abreast = random_heads_abreast(random, config.num_kv_heads);
  decode.cost.per_tile *= decode.heads_abreast;  // a tile has the keys of each
  config.group = pick(random, {1, 3, 4, 5, 16});
  config.page_size = pick(random, {1, 5, 16, 64});
  config.pipeline[0].num_ctas = pick(random, {1, 7, 40}), config.pipeline[1].num_ctas = pick(random, {1, 5, 40});
  config.pipeline[0].tile_kv = pick(random, {64, 96}), config.pipeline[1].tile_kv = pick(random, {16, 64});
  config.pipeline[1].tile_rows = pick(random, {16, 64, 128});
  return config;
}

// Requests whose page tables agree for a while with that of the one in front, or not at all: a random tree.
struct Tables {
  std::vector<std::int32_t> qo, kv, ids;

  Tables(Random& random, int page_size) {
    const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::int32_t next_id = 0, last_begin = 0, last_pages = 0;
    const bool at_few_places = below(2);  // prefixes end at multiples of 640 keys, or anywhere
    for (int r = 0, n = 1 + below(24); r < n; ++r) {
      qo.push_back(below(8) == 0 ? 0 : below(12) == 0 ? 30 : 1 + below(4));
      kv.push_back(below(10) == 0 ? 0 : 1 + below(3000));
      const auto pages = (kv.back() + page_size - 1) / page_size;
      const auto begin = static_cast<std::int32_t>(ids.size());
      int same = below(5) == 0 ? 0 : below(std::min<int>(pages, last_pages) + 1);
      if (at_few_places) same = same * page_size / 640 * 640 / page_size;
      for (int i = 0; i < pages; ++i) ids.push_back(i < same ? ids[static_cast<std::size_t>(last_begin + i)] : next_id++);
      last_begin = begin, last_pages = pages;
    }
  }
};

// Plain ifs: an assertion of Catch2 for every page would take all the time.
void demand(bool is_so, const char* what) {
  if (!is_so) throw std::runtime_error(what);
}

// What the items make of every packed row of the batch and every kv head: which keys are read for it, and
// at which level. Requests that append runs are left out.
class Reading {
 public:
  Reading(const PlanConfig& config, const Tables& tables, const OwnedBatch& owned)
      : config_(config), tables_(tables), owned_(owned) {
    for (std::size_t r = 0; r < tables.qo.size(); ++r)
      rows_.resize(rows_.size() + static_cast<std::size_t>(tables.qo[r] * config.group),
                   {r, std::vector<std::vector<Keys>>(static_cast<std::size_t>(config.num_kv_heads))});
  }

  void add(const WorkItem& item, int tile_kv) {
    const auto first = static_cast<std::size_t>(first_request(item));
    const bool is_prefix = item.request < 0;
    const std::int64_t front = (item.kv_offset - owned_.kv_indptr[first]) * config_.page_size;
    const std::int64_t own_end = is_prefix ? INT64_MAX : tables_.kv[first];
    const Keys keys{front + std::int64_t{item.tile_begin} * tile_kv,
                    std::min(own_end, front + std::int64_t{item.tile_end} * tile_kv), is_prefix ? prefix_state(item) : kOwn};
    std::size_t last = first;
    for (int i = 0; i < item.num_rows; ++i) {
      Row& row = rows_[static_cast<std::size_t>(item.qo_begin * config_.group + item.row_begin + i)];
      demand(is_prefix || row.request == first, "an item has rows of another request");
      demand(is_prefix || item.kv_len == tables_.kv[first] - front, "an item has other keys than its request");
      if (!is_prefix) row.prefix_states = item.prefix_states;
      demand(!is_prefix || keys.end <= tables_.kv[row.request] - tables_.qo[row.request], "a row does not see all of a prefix");
      for (int head = item.kv_head_begin; head < item.kv_head_end; ++head)
        if (keys.begin < keys.end) row.read[static_cast<std::size_t>(head)].push_back(keys);
      if (row.request != last) check_pages(last = row.request, first, keys);
    }
  }

  // Every key once; states follow one another, the outermost first, and the row's own keys come last.
  int check() {
    int most = 0;
    for (Row& row : rows_) {
      if (tables_.qo[row.request] * config_.group > config_.max_decode_rows) continue;
      for (std::vector<Keys>& read : row.read) {
        std::sort(read.begin(), read.end(), [](const Keys& a, const Keys& b) { return a.begin < b.begin; });
        Keys last{0, 0, -1};
        int states = 0;
        for (const Keys& keys : read) {
          demand(keys.begin == last.end, "a key is not read once");
          demand(keys.state == last.state || keys.state == last.state + 1 || keys.state == kOwn, "a state is left out");
          last = keys;
          if (keys.state != kOwn) states = keys.state + 1;
        }
        demand(states == row.prefix_states, "an item waits for other states than its rows have");
        most = std::max(most, states);
        demand(last.end == tables_.kv[row.request], "the last keys are not read");
        demand(read.empty() || last.state == kOwn, "the last keys are not the row's own");
      }
    }
    return most;
  }

 private:
  static constexpr int kOwn = kMaxPrefixStates;
  struct Keys {
    std::int64_t begin, end;
    int state;
  };
  struct Row {
    std::size_t request;
    std::vector<std::vector<Keys>> read;  // by kv head
    int prefix_states = 0;
  };

  void check_pages(std::size_t request, std::size_t first, const Keys& keys) const {
    for (std::int64_t page = keys.begin / config_.page_size; page * config_.page_size < keys.end; ++page)
      demand(id(request, page) == id(first, page), "a page is not the row's");
  }
  std::int32_t id(std::size_t r, std::int64_t page) const {
    return tables_.ids[static_cast<std::size_t>(owned_.kv_indptr[r] + page)];
  }

  const PlanConfig& config_;
  const Tables& tables_;
  const OwnedBatch& owned_;
  std::vector<Row> rows_;
};

// A state is left by one stream: the pieces of one row, head and level are cut from the same tiles.
void check_states(const PlanView::Section& section) {
  std::map<std::tuple<int, int, int, int>, int> whole;  // level, first row, row, head
  for (const WorkItem& item : section.items) {
    if (item.request >= 0 || (item.partial >= 0 && item.join == 0)) continue;
    for (int head = item.kv_head_begin; head < item.kv_head_end; ++head)
      for (int i = 0; i < item.num_rows; ++i)
        demand(++whole[{prefix_state(item), item.qo_begin, item.row_begin + i, head}] == 1, "two streams leave one state");
  }
}

// Every row that has a state is among those that the header names, and there is room for these.
void check_rows(const PlanView& view, std::int64_t room) {
  const PlanHeader& header = view.header();
  std::int32_t begin = INT32_MAX, end = 0;
  for (const WorkItem& item : view.section(Pipeline::append).items) {
    if (item.request >= 0) continue;
    begin = std::min(begin, item.qo_begin), end = std::max(end, item.qo_begin + item.qo_len);
  }
  demand((end == 0) == (header.prefix_states == 0), "room for states that no row has");
  demand(end == 0 || (header.prefix_row_begin == begin && std::int64_t{header.prefix_states} * (end - begin) <= room),
         "there are more rows than room for their states");
}

}  // namespace

TEST_CASE("prefixes: groups are exact, nest, and rows see every key once", "[prefixes]") {
  int groups = 0, in_parts = 0, plans_of_levels[kMaxPrefixLevels + 1] = {};
  const int plans = plans_to_try(1000);
  for (int i = 0; i < plans; ++i) {
    Random random(static_cast<unsigned>(i));
    const PlanConfig config = random_sharing_config(random);
    INFO("plan " << i);
    const Tables tables(random, config.page_size);
    const OwnedBatch owned(tables.qo, tables.kv, config.page_size);
    Batch batch = owned.view();
    batch.kv_indices = tables.ids;
    Planner planner(config, maxima_of(tables.qo, tables.kv));
    PlanBytes bytes(planner.layout().plan_bytes), again(planner.layout().plan_bytes);
    const MaskBounds mask{.causal = i % 2};
    const PlanSummary summary = planner.plan(batch, mask, bytes.span());
    REQUIRE(summary.plan_bytes <= planner.layout().plan_bytes);
    groups += summary.shared_prefixes;

    const PlanView view(bytes.view());
    Reading reading(config, tables, owned);
    for (const WorkItem& item : view.section(Pipeline::decode).items) reading.add(item, config.pipeline[0].tile_kv);
    for (const WorkItem& item : view.section(Pipeline::append).items)
      if (item.request < 0) reading.add(item, config.pipeline[1].tile_kv);
    const int states = reading.check();
    check_states(view.section(Pipeline::append));
    REQUIRE(view.header().prefix_states == states);
    REQUIRE(summary.prefix_levels <= states);
    check_rows(view, most_prefix_states(config, planner.maxima()));
    ++plans_of_levels[summary.prefix_levels];
    in_parts += states > summary.prefix_levels;
    // The same once more: a finder keeps nothing from one plan to the next.
    planner.plan(batch, mask, again.span());
    REQUIRE(std::memcmp(bytes.view().data(), again.view().data(), summary.plan_bytes) == 0);
  }
  CHECK(groups > plans);
  CHECK(in_parts > plans / 20);
  for (const int count : plans_of_levels) CHECK(count > plans / 20);
}

namespace {

// Requests of so many keys and one query row; of each, how many leading pages are those of the one before.
struct Tree {
  std::vector<std::int32_t> qo, kv, ids;

  explicit Tree(const std::vector<int>& same, std::int32_t keys = 2000) : qo(same.size(), 1), kv(same.size(), keys) {
    const std::int32_t pages = (keys + 15) / 16;
    for (std::size_t r = 0; r < same.size(); ++r)
      for (std::int32_t page = 0; page < pages; ++page)
        ids.push_back(r > 0 && page < same[r] ? ids[ids.size() - static_cast<std::size_t>(pages)]
                                              : static_cast<std::int32_t>(ids.size()));
  }
  struct Planned {
    PlanSummary summary;
    PlanHeader header;
  };
  Planned planned(const PlanConfig& config, const MaskBounds& mask) const {
    const OwnedBatch owned(qo, kv, 16);
    Batch batch = owned.view();
    batch.kv_indices = ids;
    Planner planner(config, maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);
    const PlanSummary summary = planner.plan(batch, mask, bytes.span());
    return {summary, PlanView(bytes.view()).header()};
  }
  PlanSummary plan(double cost, const MaskBounds& mask = {}) const { return planned(sharing_config(cost), mask).summary; }
};

}  // namespace

TEST_CASE("prefixes: nothing is shared where that costs more, or where a window tells rows apart", "[prefixes]") {
  const Tree tree(std::vector<int>(6, 125));
  const PlanSummary found = tree.plan(0);
  CHECK(found.shared_prefixes == 1);
  CHECK(found.shared_keys == 1984 * 5);  // whole tiles of 64 in front of the last key
  CHECK(tree.plan(1e9).shared_prefixes == 0);
  CHECK(tree.plan(0, {.causal = 1, .window_left = 5000}).shared_prefixes == 0);
  CHECK(tree.plan(0, {.causal = 1, .sink = 4}).shared_prefixes == 0);
}

TEST_CASE("prefixes: levels that save most win where a tree is deeper", "[prefixes]") {
  // Sixteen share 40 pages, eight and eight of them 40 more, fours 40 more.
  const Tree two({0, 80, 80, 80, 80, 80, 80, 80, 40, 80, 80, 80, 80, 80, 80, 80});
  const PlanSummary nested = two.plan(0);
  CHECK(nested.shared_prefixes == 3);
  CHECK(nested.prefix_levels == 2);
  CHECK(nested.shared_keys == 640 * 15 + 2 * 640 * 7);
  const Tree three({0, 120, 120, 120, 80, 120, 120, 120, 40, 120, 120, 120, 80, 120, 120, 120});
  CHECK(three.plan(0).prefix_levels == 3);
  CHECK(three.plan(0).shared_keys == 640 * 15 + 2 * 640 * 7 + 4 * 640 * 3);
  // Twice that, with 4 pages in common: a fourth level, of 64 keys. There is least to lose by leaving them to the
  // level inside.
  const Tree four({0, 120, 120, 120, 80, 120, 120, 120, 40, 120, 120, 120, 80, 120, 120, 120,
                   4, 120, 120, 120, 80, 120, 120, 120, 40, 120, 120, 120, 80, 120, 120, 120});
  CHECK(four.plan(0).prefix_levels == 3);
  CHECK(four.plan(0).shared_keys == 2 * (640 * 15 + 2 * 640 * 7 + 4 * 640 * 3));
}

// States are for as many rows of q as decode can have, from those of the first group on.
TEST_CASE("prefixes: groups on either side of a long prompt", "[prefixes]") {
  Tree tree({0, 125, 125, 0, 0, 125, 125});
  const auto shared = [&tree](int prompt) {
    tree.qo[3] = prompt;
    return tree.plan(0).shared_prefixes;
  };
  CHECK(shared(20) == 2);   // 26 rows of the 7 * 4
  CHECK(shared(30) == 1);
}

// One request after the other leaves the tree: as many nodes as requests, one inside the other.
TEST_CASE("prefixes: a tree as deep as the batch is planned in no time", "[prefixes]") {
  std::vector<int> same{0};
  for (int r = 1; r < 4000; ++r) same.push_back(std::max(4, 124 - r / 32 / 4 * 4));
  const PlanSummary found = Tree(same).plan(0);
  CHECK(found.prefix_levels == 3);
  CHECK(found.shared_keys > 4000 * 64);
}

TEST_CASE("prefixes: page ids that are too few, or that nobody reads, are refused", "[prefixes]") {
  const std::vector<std::int32_t> qo{1, 1}, kv{100, 100}, ids(13);
  const OwnedBatch owned(qo, kv, 16);
  Batch batch = owned.view();
  batch.kv_indices = ids;
  PlanConfig config = sharing_config();
  const auto refusal = [&] {
    Planner planner(config, maxima_of(qo, kv));
    PlanBytes bytes(planner.layout().plan_bytes);
    try {
      planner.plan(batch, {}, bytes.span());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  CHECK(refusal() == "kv_indices has 13 entries; this batch reaches 14.");
  config.share_prefixes = false;
  CHECK(refusal() == "The batch gives 13 page ids in kv_indices, which only a plan with share_prefixes reads.");
}

TEST_CASE("prefixes: a long one of few requests is read in parts that fill the CTAs, whole", "[prefixes]") {
  PlanConfig config = sharing_config();
  config.num_kv_heads = 8, config.group = 4;
  config.pipeline[0].num_ctas = 264, config.pipeline[0].cost = {.per_item = 1000, .per_tile = 2900, .per_partial = 600};
  config.pipeline[1] = {.present = true, .num_ctas = 132, .tile_rows = 128, .tile_kv = 128,
                        .cost = {.per_item = 3000, .per_tile = 1700, .per_partial = 2000}};
  // Requests, pages of 16 that they share, parts that the prefix is read in.
  for (const auto& [requests, pages, parts] : {std::tuple{64, 2048, 8}, {32, 2048, 16}, {128, 2048, 4}, {512, 2048, 1}, {64, 32, 2}}) {
    INFO(requests << " requests share " << pages << " pages");
    const Tree tree(std::vector<int>(static_cast<std::size_t>(requests), pages), pages * 16 + 1000);
    const auto [summary, header] = tree.planned(config, {.causal = 1});
    CHECK(summary.shared_prefixes == 1);
    CHECK(summary.prefix_levels == 1);
    CHECK(header.prefix_states == parts);
    if (requests <= 64) CHECK(summary.joins[1] == 0);
  }
}
