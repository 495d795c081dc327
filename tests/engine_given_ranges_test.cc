// Masks whose rows have their ranges given, on the CPU device: against the reference, beside declared masks that say the
// same, and what the calls refuse.
#include <cmath>
#include <limits>
#include <mutex>

#include "tests/catch.h"
#include "tests/engine_support.h"
#include "tests/given_ranges.h"
#include "tools/options.h"
#include "tools/parallel.h"

using namespace heddle;
using namespace heddle_tests;

TEST_CASE("given ranges: every kind beside every mask", "[engine][given_ranges]") {
  Engine engine = cpu_engine();
  std::vector<ProblemShape> shapes;
  for (const char* variant : kGivenVariants)
    for (const ProblemShape& shape : given_range_shapes(engine, variant)) shapes.push_back(shape);
  std::mutex mutex;
  int cut = 0;
  std::vector<std::string> wrong;
  tools::parallel_for(int(shapes.size()), [&](int i) {
    CaseRun run(engine, shapes[std::size_t(i)], std::uint64_t(i));
    const Found found = run.judge();
    const std::lock_guard lock(mutex);
    cut += run.is_cut();
    if (!found.empty()) wrong.push_back(found);
  });
  for (const std::string& what : wrong) UNSCOPED_INFO(what);
  CHECK(wrong.empty());
  CHECK(cut >= 10);
}

TEST_CASE("given ranges: NaN in keys that no row sees never matters", "[engine][given_ranges]") {
  Engine engine = cpu_engine();
  for (const char* variant : {"key_ranges", "causal+key_ranges"})
    CHECK(unseen_keys_matter(engine, {.variant = tools::resolve_variant(engine, variant), .num_qo_heads = 4,
                                      .num_kv_heads = 2, .head_dim = 64, .page_size = 16}) == "");
}

// The same mask as a range for each row, to the bit: the plan is cut alike too.
TEST_CASE("given ranges: the same as what declared masks say", "[engine][given_ranges]") {
  Engine engine = cpu_engine();
  struct Same {
    const char* variant;
    ParamValues params;
    std::pair<int, int> (*range)(int q_pos, int kv_len);
  };
  const Same kSame[] = {
      {"causal", {}, [](int q_pos, int) { return std::pair(0, q_pos + 1); }},
      {"sliding_window", {{"window", 20}}, [](int q_pos, int) { return std::pair(std::max(q_pos - 20, 0), q_pos + 1); }},
      {"softmax", {}, [](int, int kv_len) { return std::pair(0, kv_len); }}};
  for (const Same& one : kSame) {
    INFO(one.variant);
    ProblemShape declared{.config = {.variant = one.variant, .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64},
                          .params = one.params, .qo_lens = {1, 70, 3}, .kv_lens = {500, 200, 40}};
    ProblemShape given = declared;
    given.config.variant = "key_ranges", given.params = {};
    given.ranges.emplace();
    for (std::size_t r = 0; r < given.qo_lens.size(); ++r)
      for (int row = 0; row < given.qo_lens[r]; ++row) {
        const auto [first, end] = one.range(given.kv_lens[r] - given.qo_lens[r] + row, given.kv_lens[r]);
        given.ranges->add(first, end);
      }
    CaseRun by_mask(engine, declared), by_range(engine, given);
    CHECK(by_mask.judge() == "");
    CHECK(by_range.judge() == "");
    CHECK(by_mask.problem.o_bits() == by_range.problem.o_bits());
    CHECK(by_mask.problem.lse_bits() == by_range.problem.lse_bits());
  }
}

TEST_CASE("given ranges: a workspace takes another mask with every plan", "[engine][given_ranges]") {
  Engine engine = cpu_engine();
  const AttentionConfig config{.variant = "key_ranges", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  ProblemShape shape{.config = config, .qo_lens = {1, 40}, .kv_lens = {300, 200}};
  Attention attention = engine.attention(config);
  Workspace workspace = attention.workspace(Problem(engine, shape, 1).maxima());
  for (const int begin : {0, 150, 60, 200}) {
    shape.ranges.emplace();
    for (int row = 0; row < 41; ++row) shape.ranges->add(begin, 200 - row);
    Problem problem(engine, shape, 1);
    plan_and_run(attention, workspace, problem);
    CHECK(problem.judge().what == "");
  }
}

TEST_CASE("given ranges: what is missing or not asked for is refused", "[engine][given_ranges][bad]") {
  Engine engine = cpu_engine();
  const AttentionConfig config{.variant = "key_ranges", .num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  CaseRun run(engine, {.config = config, .qo_lens = {1, 2}, .kv_lens = {20, 33}});
  const auto refusal = [&](auto change) {
    Batch batch = run.problem.batch();
    change(batch);
    return sentence_of([&] { run.attention.plan(batch, run.workspace); });
  };
  CHECK(refusal([](Batch&) {}) == "accepted");
  CHECK(refusal([](Batch& b) { b.first_keys = {}; }) ==
        "first_keys has 0 entries; this plan's mask has the rows' ranges given (\"rows\": \"given\"), so its batch of 3 query rows "
        "needs 3.");
  CHECK(refusal([](Batch& b) { b.end_keys = b.end_keys.first(2); }) ==
        "end_keys has 2 entries; this plan's mask has the rows' ranges given (\"rows\": \"given\"), so its batch of 3 query rows "
        "needs 3.");
  CHECK(run.judge() == "");  // still of use

  AttentionConfig sharing = config;
  sharing.share_prefixes = true;
  CHECK(sentence_of([&] { engine.attention(sharing); }) ==
        "The rows of variant key_ranges have their ranges of keys given, so they see different keys of a prefix; "
        "share_prefixes cannot serve it.");
}

TEST_CASE("given ranges: the reference takes them, of every row that it is asked for", "[engine][given_ranges][bad]") {
  const Engine engine = cpu_engine();
  const Variant& variant = engine.variants().at("key_ranges");
  const std::vector<double> q(2 * 8, 1.0), k(3 * 8, 0.0), v = [] {
    std::vector<double> rows(3 * 8);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = double(i / 8 + 1);
    return rows;
  }();
  ReferenceInput input{.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 8, .qo_len = 2, .kv_len = 3, .q = q, .k = k, .v = v};
  CHECK(sentence_of([&] { reference(engine, variant, {}, input); }) ==
        "The reference's first_keys has 0 elements; its shape asks for 2.");
  const std::vector<std::int32_t> first = {1, 3}, end = {3, 3};
  input.first_keys = first, input.end_keys = end;
  const ReferenceResult result = reference(engine, variant, {}, input);
  CHECK(result.o[0] == Approx(2.5));  // the mean of the second and the third key's value
  CHECK(result.lse[0] == Approx(std::log(2.0)));
  CHECK(result.o[8] == 0);
  CHECK(result.lse[1] == -std::numeric_limits<double>::infinity());
  CHECK(sentence_of([&] { reference(engine, engine.variants().at("causal"), {}, input); }) ==
        "The reference's first_keys has 2 elements; its shape asks for 0.");
}
