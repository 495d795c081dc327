// explain and draw_svg say what the plan holds.
#include <cctype>
#include <regex>

#include <fmt/format.h>

#include "planner/draw.h"
#include "planner/explain.h"
#include "planner/plan_view.h"
#include "tests/catch.h"
#include "tests/planner_batches.h"

using namespace heddle_tests;

namespace {

std::string explained(const PlanConfig& config, const std::vector<std::int32_t>& qo, const std::vector<std::int32_t>& kv,
                      int request, const MaskBounds& mask = {}) {
  Planned planned = plan_of(config, qo, kv, mask);
  return explain(config, planned.bytes.span(), request);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Reads the XML as far as an SVG needs: tags nest and close, attributes are quoted, no stray < or &.
bool is_well_formed(const std::string& xml) {
  static const std::regex kTag(R"re(<(/?)([A-Za-z]+)((?:\s+[A-Za-z0-9:-]+="[^"<&]*")*)\s*(/?)>)re");
  std::vector<std::string> open;
  std::size_t at = 0;
  int roots = 0;
  for (std::sregex_iterator tag(xml.begin(), xml.end(), kTag), end; tag != end; ++tag) {
    const auto begin = static_cast<std::size_t>(tag->position());
    if (xml.substr(at, begin - at).find_first_of("<&") != std::string::npos) return false;
    at = begin + static_cast<std::size_t>(tag->length());
    if ((*tag)[1].length() > 0) {
      if (open.empty() || open.back() != (*tag)[2]) return false;
      open.pop_back();
    } else if ((*tag)[4].length() == 0) {
      roots += open.empty() ? 1 : 0;
      open.push_back((*tag)[2]);
    }
  }
  return open.empty() && roots == 1 && xml.substr(at).find_first_not_of('\n') == std::string::npos;
}

}  // namespace

TEST_CASE("explain: a long request is cut, a short one is not", "[planner][explain]") {
  const std::vector<std::int32_t> kv = parse_lengths("1x131072+255x1024"), qo(kv.size(), 1);
  CHECK(explained(named_config(), qo, kv, 0) ==
        "Request 0 has 1 query row and 131072 keys. With 4 query heads to a kv head that is 4 packed rows, at most 16, so "
        "the decode pipeline runs it. Its 1 query tile of up to 16 rows for each of 8 kv heads make 8 streams. With no "
        "declared mask they visit 16384 of 16384 KV tiles of 64 keys. All work lies in one row, of which each of the 132 "
        "CTAs takes at most 389.5 KV tiles of time; this request is worth 42.26 such shares. Borders between CTAs cut 8 of "
        "its 8 streams, into 6 to 7 pieces each, of 6 to 388 KV tiles; the CTA with the last piece merges them all "
        "in the order of the keys. It is 50 items of the work list on 43 CTAs (CTA 0 to 42), 50 of them pieces.");
  const std::string last = explained(named_config(), qo, kv, 255);
  CHECK_THAT(last, contains("so nothing was cut and nothing is merged. It is 1 item of the work list on 1 CTA (CTA 131)."));
}

TEST_CASE("explain: heads in step lie in rows of their own", "[planner][explain]") {
  const std::vector<std::int32_t> kv(64, 4096), qo(kv.size(), 1);
  CHECK_THAT(explained(named_config(264), qo, kv, 0),
             contains("All work lies in 8 rows, as many heads of a request side by side to be read in step, of which each of "
                      "the 264 CTAs takes at most"));
}

TEST_CASE("explain: a batch-invariant plan cuts by the request's own lengths", "[planner][explain]") {
  PlanConfig config = named_config();
  config.batch_invariant = true;
  const std::vector<std::int32_t> kv = parse_lengths("1x8000+20x1024"), qo(kv.size(), 1);
  CHECK_THAT(explained(config, qo, kv, 0),
             contains("visit 1000 of 1000 KV tiles of 64 keys. The plan is batch-invariant, so only its own lengths decide on "
                      "cuts. They cut 8 of its 8 streams, into 6 pieces each, of 20 to 21 KV tiles; the CTA with the last "
                      "piece merges them all in the order of the keys. It is 48 items of the work list on "));
  CHECK_THAT(explained(config, qo, kv, 20), contains("They are too short for any. It is 4 items of the work list on 4 CTAs"));
}

TEST_CASE("explain: masks, empty requests and absent pipelines", "[planner][explain]") {
  const MaskBounds mask{.causal = 1, .window_left = 500, .sink = 10};
  const std::string masked = explained(named_config(), {1, 0, 1}, {3000, 5, 0}, 0, mask);
  CHECK_THAT(masked, contains("With a causal mask, window_left 500, sink 10 they visit 72 of 376 KV tiles of 64 keys, with a "
                              "gap between the sink keys and the window."));
  CHECK_THAT(explained(named_config(), {1, 0, 1}, {3000, 5, 0}, 1, mask),
             contains("Without query rows there is nothing to do, so it has no work item."));
  CHECK_THAT(explained(named_config(), {1, 0, 1}, {3000, 5, 0}, 2, mask),
             contains("Its rows see no key, so they get output 0 and lse -inf."));
  PlanConfig append_only = named_config();
  append_only.pipeline[0] = {};
  CHECK_THAT(explained(append_only, {1}, {50}, 0),
             contains("4 packed rows, and there is no decode pipeline, so the append pipeline runs it."));
  CHECK_THAT(explained(named_config(), {100}, {100}, 0, {.causal = 1}),
             contains("400 packed rows, more than 16, so the append pipeline runs it. Its 4 query tiles of up to 128 rows"));
  CHECK_THROWS_WITH(explained(named_config(), {1}, {50}, 1), "The plan has no request 1; it has 1 of them, counted from 0.");
  CHECK_THROWS_WITH(explain(named_config(), {}, 0), "A plan of 0 bytes has no header; it takes at least 80.");
}

TEST_CASE("heads that a CTA reads abreast are one stream, in words and in the picture", "[planner][explain]") {
  PlanConfig config = named_config();
  config.head_dim = 64;
  config.pipeline[0].heads_abreast = 2;
  const std::string words = explained(config, {1}, {40000}, 0);
  CHECK_THAT(words, contains("for each of 8 kv heads, of which a CTA reads 2 abreast, make 4 streams."));
  CHECK_THAT(words, contains("they visit 2500 of 2500 KV tiles of 64 keys."));
  CHECK_THAT(words, contains("All work lies in one row"));
  CHECK_THAT(words, contains("cut 4 of its 4 streams"));
  Planned planned = plan_of(config, {1}, {40000});
  CHECK_THAT(draw_svg(config, planned.bytes.span()), contains("CTA 131, request 0: kv heads 6 to 7, KV tiles"));
}

TEST_CASE("draw_svg: one bar a CTA, a colour a request, pieces outlined", "[planner][draw]") {
  const std::vector<std::int32_t> kv{40000, 700, 700}, qo{1, 1, 300};
  Planned planned = plan_of(named_config(), qo, kv);
  const std::string svg = draw_svg(named_config(), planned.bytes.span());
  CHECK(is_well_formed(svg));
  CHECK(count(svg, "class=\"piece\"") == planned.summary.partials[0] + planned.summary.partials[1] +
                                            planned.summary.joins[0] + planned.summary.joins[1] + 1);  // + legend
  CHECK_THAT(svg, contains(fmt::format("decode: {} items on 132 CTAs, {} cut streams, busiest CTA {:.3f} of the mean",
                                       planned.summary.items[0], planned.summary.joins[0],
                                       planned.summary.max_over_mean[0])));
  CHECK_THAT(svg, contains("append: "));
  CHECK_THAT(svg, contains("0: qo_len 1, kv_len 40000"));
  CHECK_THAT(svg, contains("2: qo_len 300, kv_len 700"));
  CHECK_THAT(svg, contains("cost (time by the cost model)"));
}

TEST_CASE("draw_svg: the bars' widths are the costs", "[planner][draw]") {
  PlanConfig config = named_config(1, 1);
  config.num_kv_heads = 1;
  Planned planned = plan_of(config, {1, 1}, {64 * 2, 64 * 8});  // costs 3 and 9 of the 12
  const std::string svg = draw_svg(config, planned.bytes.span());
  CHECK_THAT(svg, contains("x=\"64.00\" y=\"80.0\" width=\"240.00\""));
  CHECK_THAT(svg, contains("x=\"304.00\" y=\"80.0\" width=\"720.00\""));
}

TEST_CASE("draw_svg: 264 CTAs of 40 requests each stay a picture", "[planner][draw]") {
  const std::vector<std::int32_t> kv = parse_lengths("10000x300"), qo(kv.size(), 1);
  Planned planned = plan_of(named_config(264), qo, kv);
  const std::string svg = draw_svg(named_config(264), planned.bytes.span());
  CHECK(is_well_formed(svg));
  CHECK(svg.size() < 2'000'000);
  Planned empty = plan_of(named_config(), {0}, {5});
  CHECK(is_well_formed(draw_svg(named_config(), empty.bytes.span())));
  CHECK_THAT(draw_svg(named_config(), empty.bytes.span()), contains("every CTA is idle"));
}
