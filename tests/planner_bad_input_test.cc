// Each rule of the edge, and its sentence word for word.
#include <functional>

#include <fmt/format.h>

#include "engine/error.h"
#include "planner/check_batch.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

PlanConfig paged() { return named_config(); }
PlanConfig ragged() {
  PlanConfig config = named_config();
  config.page_size = 0;
  return config;
}
PlanConfig decode_only() {
  PlanConfig config = named_config();
  config.pipeline[1] = {};
  return config;
}

const Maxima kMaxima{.max_requests = 4, .max_qo_rows = 100, .max_kv_tokens = 1000, .max_qo_len = 0};

// Three good requests of 20, 0 and 33 keys as CSR with pages of 16; a case spoils one thing.
OwnedBatch csr() { return OwnedBatch({1, 2, 3}, {20, 0, 33}, 16); }
OwnedBatch table() { return OwnedBatch({1, 2, 3}, {20, 0, 33}, 16, true); }
OwnedBatch rows() { return OwnedBatch({1, 2, 3}, {20, 0, 33}, 0); }

struct BadBatch {
  PlanConfig config;
  OwnedBatch batch;
  std::function<void(OwnedBatch&)> spoil;
  const char* message;
};

const BadBatch kBadBatches[] = {
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr.clear(); },
     "qo_indptr is empty; it needs one entry more than the batch has requests, so a single 0 for none."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr = {0, 1, 2, 3, 4, 5}; },
     "The batch has 5 requests; this workspace was made for max_requests = 4."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr = {0}; },
     "kv_indptr has 4 entries; a batch of 0 requests (as qo_indptr says) needs 1."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr[0] = 2; }, "qo_indptr[0] is 2; it must be 0."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr[2] = -1; },
     "Request 1: qo_indptr decreases from 1 to -1; it must never decrease."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr[3] = 2; },
     "Request 2: qo_indptr decreases from 3 to 2; it must never decrease."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr.pop_back(); },
     "kv_indptr has 3 entries; a batch of 3 requests (as qo_indptr says) needs 4."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr.clear(); },
     "kv_indptr has 0 entries; a batch of 3 requests (as qo_indptr says) needs 4."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr[0] = -3; }, "kv_indptr[0] is -3; it must be 0."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr[2] = 1; },
     "Request 1: kv_indptr decreases from 2 to 1; it must never decrease."},
    {paged(), csr(), [](OwnedBatch& b) { b.last_page_len.clear(); },
     "last_page_len has 0 entries; a batch of 3 requests (as qo_indptr says) needs 3."},
    {paged(), csr(), [](OwnedBatch& b) { b.last_page_len[1] = 4; },
     "Request 1: last_page_len is 4; without a page it must be 0."},
    {paged(), csr(), [](OwnedBatch& b) { b.last_page_len[2] = 0; },
     "Request 2: last_page_len is 0; with 3 pages of 16 keys it must be from 1 to 16."},
    {paged(), csr(), [](OwnedBatch& b) { b.last_page_len[0] = 17; },
     "Request 0: last_page_len is 17; with 2 pages of 16 keys it must be from 1 to 16."},
    {paged(), csr(), [](OwnedBatch& b) { b.last_page_len[0] = -1; },
     "Request 0: last_page_len is -1; with 2 pages of 16 keys it must be from 1 to 16."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr[3] = 2000000000; },
     "Request 2: kv_len is 31999999953 (1999999998 pages of 16 keys); at most 2147418112 is allowed."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr[3] = 100; },
     "Request 2: its 1553 keys bring the batch to 1573; this workspace was made for max_kv_tokens = 1000."},
    {paged(), csr(), [](OwnedBatch& b) { b.qo_indptr[3] = 101; },
     "Request 2: its 98 query rows bring the batch to 101; this workspace was made for max_qo_rows = 100."},
    {paged(), csr(), [](OwnedBatch& b) { b.stride = 8; },
     "The batch mixes kv_indptr or last_page_len with kv_table_stride or kv_lens; give pages either as CSR (kv_indptr "
     "and last_page_len) or as a dense table (kv_table_stride and kv_lens)."},
    {paged(), csr(), [](OwnedBatch& b) { b.kv_indptr.clear(), b.last_page_len.clear(); },
     "The batch of 3 requests names no pages; give kv_indptr and last_page_len, or kv_table_stride and kv_lens."},
    {paged(), table(), [](OwnedBatch& b) { b.kv_lens.pop_back(); },
     "kv_lens has 2 entries; a batch of 3 requests (as qo_indptr says) needs 3."},
    {paged(), table(), [](OwnedBatch& b) { b.stride = -1; }, "kv_table_stride is -1; it must not be negative."},
    {paged(), table(), [](OwnedBatch& b) { b.stride = 2; },
     "Request 2: kv_lens is 33, which takes 3 pages of 16 keys; kv_table_stride is 2 and must be at least 3."},
    {paged(), table(), [](OwnedBatch& b) { b.kv_lens[1] = -7; }, "Request 1: kv_lens is -7; it must not be negative."},
    {paged(), table(), [](OwnedBatch& b) { b.kv_lens[1] = 2147483647; },
     "Request 1: kv_lens is 2147483647; at most 2147418112 is allowed."},
    {ragged(), rows(), [](OwnedBatch& b) { b.last_page_len = {1, 1, 1}; },
     "The batch gives last_page_len, but this plan is for ragged K/V (page_size 0): give kv_indptr alone."},
    {ragged(), rows(), [](OwnedBatch& b) { b.kv_lens = {1, 1, 1}; },
     "The batch gives a dense page table, but this plan is for ragged K/V (page_size 0): give kv_indptr alone."},
    {ragged(), rows(), [](OwnedBatch& b) { b.kv_indptr[3] = 2147483647; },
     "Request 2: kv_len is 2147483627; at most 2147418112 is allowed."},
    {decode_only(), csr(), [](OwnedBatch& b) { b.qo_indptr[3] = 8; },
     "Request 2: qo_len is 5, which makes 20 packed rows with 4 query heads to a kv head; without the append pipeline "
     "at most 16 rows, a qo_len of 4, are allowed."},
};

}  // namespace

TEST_CASE("a bad batch gets one sentence, and the planner stays usable", "[planner][bad_input]") {
  for (const BadBatch& bad : kBadBatches) {
    INFO(bad.message);
    Planner planner(bad.config, kMaxima);
    PlanBytes bytes(planner.layout().plan_bytes);
    OwnedBatch batch = bad.batch;
    REQUIRE_NOTHROW(planner.plan(batch.view(), {}, bytes.span()));
    const std::vector<std::byte> before(bytes.span().begin(), bytes.span().end());
    bad.spoil(batch);
    CHECK_THROWS_WITH(planner.plan(batch.view(), {}, bytes.span()), bad.message);
    CHECK(std::equal(before.begin(), before.end(), bytes.span().begin()));  // nothing written
    CHECK_NOTHROW(planner.plan(bad.batch.view(), {}, bytes.span()));
  }
}

TEST_CASE("errors of the edge are invalid arguments", "[planner][bad_input]") {
  Planner planner(named_config(), kMaxima);
  try {
    planner.plan({}, {}, {});
    FAIL("no room, and no batch either");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    CHECK(std::string(error.what()) == fmt::format("The plan has room for 0 bytes; layout().plan_bytes = {} are needed.",
                                                   planner.layout().plan_bytes));
  }
}

TEST_CASE("a bound on the query rows of one request is kept", "[planner][bad_input]") {
  Maxima maxima = kMaxima;
  maxima.max_qo_len = 2;
  Planner planner(named_config(), maxima);
  PlanBytes bytes(planner.layout().plan_bytes);
  const OwnedBatch batch = csr();
  CHECK_THROWS_WITH(planner.plan(batch.view(), {}, bytes.span()),
                    "Request 2: qo_len is 3; this workspace was made for max_qo_len = 2.");
}

TEST_CASE("packed rows past 32 bits are refused", "[planner][bad_input]") {
  PlanConfig config = named_config();
  config.group = 4096;
  const Maxima maxima{.max_requests = 1, .max_qo_rows = 600000, .max_kv_tokens = 1};
  const OwnedBatch batch({524288}, {0}, 16);
  CHECK_THROWS_WITH(check_batch(config, maxima, batch.view()),
                    "Request 0: qo_len is 524288, which makes 2147483648 packed rows with 4096 query heads to a kv head; "
                    "at most 2147479551 are allowed.");
}

TEST_CASE("negative mask bounds are refused", "[planner][bad_input]") {
  CHECK_NOTHROW(check_mask({}));
  CHECK_NOTHROW(check_mask({.causal = 1, .window_left = 0, .window_right = 0, .sink = kUnbounded}));
  CHECK_THROWS_WITH(check_mask({.causal = 2}), "The mask's causal is 2; it must be 0 or 1.");
  CHECK_THROWS_WITH(check_mask({.window_left = -1}), "The mask's window_left is -1; it must not be negative.");
  CHECK_THROWS_WITH(check_mask({.window_right = -5}), "The mask's window_right is -5; it must not be negative.");
  CHECK_THROWS_WITH(check_mask({.sink = -2}), "The mask's sink is -2; it must not be negative.");
}

TEST_CASE("bad configs and maxima are refused", "[planner][bad_input]") {
  const auto refuse = [](const std::function<void(PlanConfig&, Maxima&)>& spoil, const char* message) {
    PlanConfig config = named_config();
    Maxima maxima = kMaxima;
    spoil(config, maxima);
    CHECK_THROWS_WITH(workspace_layout(config, maxima), message);
    CHECK_THROWS_WITH(Planner(config, maxima), message);
  };
  refuse([](PlanConfig& c, Maxima&) { c.num_kv_heads = 0; }, "num_kv_heads is 0; it must be from 1 to 4096.");
  refuse([](PlanConfig& c, Maxima&) { c.group = 0; },
         "group (num_qo_heads / num_kv_heads) is 0; it must be from 1 to 4096.");
  refuse([](PlanConfig& c, Maxima&) { c.head_dim = -1; }, "head_dim is -1; it must be from 1 to 4096.");
  refuse([](PlanConfig& c, Maxima&) { c.head_dim_vo = -1; }, "head_dim_vo is -1; it must be from 0 to 4096.");
  refuse([](PlanConfig& c, Maxima&) { c.page_size = -1; }, "page_size is -1; it must be from 0 to 1048576.");
  refuse([](PlanConfig& c, Maxima&) { c.max_decode_rows = 17; },
         "max_decode_rows is 17; it must be at most the 16 tile_rows of the decode pipeline.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[1].num_ctas = 0; },
         "num_ctas of the append pipeline is 0; it must be from 1 to 65536.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[0].tile_kv = 0; },
         "tile_kv of the decode pipeline is 0; it must be from 1 to 4096.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[0].cost.per_tile = 0; },
         "The cost model of the decode pipeline is per_item 1, per_tile 0, per_partial 0.5; per_tile must be positive and "
         "the others from 0 to 4096 times per_tile.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[0].heads_abreast = 3; },
         "heads_abreast of the decode pipeline is 3; it must be 1, or, of decode, a divisor of num_kv_heads = 8.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[1].heads_abreast = 2; },
         "heads_abreast of the append pipeline is 2; it must be 1, or, of decode, a divisor of num_kv_heads = 8.");
  refuse([](PlanConfig& c, Maxima&) { c.pipeline[0].present = c.pipeline[1].present = false; },
         "The plan config has neither a decode nor an append pipeline; at least one must be present.");
  refuse([](PlanConfig&, Maxima& m) { m.max_requests = -1; }, "max_requests is -1; it must be from 0 to 16777216.");
  refuse([](PlanConfig&, Maxima& m) { m.max_qo_rows = 1LL << 32; },
         "max_qo_rows is 4294967296; it must be from 0 to 2147483647.");
  refuse([](PlanConfig& c, Maxima& m) { c.pipeline[1] = {}, m.max_qo_len = 5; },
         "max_qo_len is 5, which makes 20 packed rows with 4 query heads to a kv head; without the append pipeline at most "
         "16 rows are allowed.");
}

TEST_CASE("a plan past 32-bit offsets is refused", "[planner][bad_input]") {
  PlanConfig config = named_config();
  config.num_kv_heads = 128;
  const Maxima maxima{.max_requests = 1, .max_qo_rows = 2147483647, .max_kv_tokens = 1};
  CHECK_THROWS_WITH(workspace_layout(config, maxima),
                    heddle_tests::contains("at most 2147483647 are allowed: lower the maxima."));
}
