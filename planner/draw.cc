#include "planner/draw.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "planner/cost.h"
#include "planner/plan_view.h"
#include "planner/prefixes.h"

namespace heddle {
namespace {

constexpr std::string_view kNames[] = {"decode", "append"};
constexpr int kMargin = 64;      // left of the bars, for the numbers of CTAs
constexpr int kPlotWidth = 960;  // of the busiest CTA
constexpr int kLegend = 260;
constexpr int kTitle = 44;
constexpr int kAxis = 40;
constexpr std::size_t kNamedRequests = 12;  // in the legend, in full colour
constexpr std::string_view kStyle =
    R"(<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">
<path d="M-1 1 l2 -2 M0 6 l6 -6 M5 7 l2 -2" stroke="#000" stroke-width="1.2" stroke-opacity="0.6"/>
</pattern><pattern id="dots" width="4" height="4" patternUnits="userSpaceOnUse">
<circle cx="2" cy="2" r="1" fill="#fff" fill-opacity="0.8"/>
</pattern></defs>
<style>
.piece { fill: url(#hatch); pointer-events: none; }
.prefix { fill: url(#dots); pointer-events: none; }
rect { shape-rendering: crispEdges; }
</style>)";

// Costs of the requests, and the order in which the legend names them.
struct Ranking {
  std::vector<double> cost;
  double total = 0;
  std::vector<int> largest;
  std::vector<int> place;  // in `largest`; -1 outside it

  double share_of(int request) const {
    return total > 0 ? cost[static_cast<std::size_t>(request)] / total : 0;
  }
};

Ranking rank(const PlanConfig& config, const PlanView& view) {
  Ranking ranking;
  ranking.cost.resize(view.requests().size());
  for (int p = 0; p < kNumPipelines; ++p) {
    for (const WorkItem& item : view.section(static_cast<Pipeline>(p)).items) {
      ranking.cost[static_cast<std::size_t>(first_request(item))] +=
          cost_of(config.pipeline[p], item);
    }
  }
  std::vector<int> order(ranking.cost.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t named = std::min(kNamedRequests, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(named), order.end(),
                    [&](int a, int b) {
                      const double cost_a = ranking.cost[static_cast<std::size_t>(a)],
                                   cost_b = ranking.cost[static_cast<std::size_t>(b)];
                      return cost_a != cost_b ? cost_a > cost_b : a < b;
                    });
  ranking.total = std::accumulate(ranking.cost.begin(), ranking.cost.end(), 0.0);
  ranking.largest.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(named));
  ranking.place.assign(ranking.cost.size(), -1);
  for (std::size_t i = 0; i < named; ++i)
    ranking.place[static_cast<std::size_t>(ranking.largest[i])] = static_cast<int>(i);
  return ranking;
}

// The named requests get twelve hues, neighbours in the legend 150 degrees apart. The others are
// pale, and neighbours in number far apart in hue too (golden angle).
std::string colour_of(const Ranking& ranking, int request) {
  const int place = ranking.place[static_cast<std::size_t>(request)];
  if (place >= 0) return fmt::format("hsl({},75%,50%)", place * 150 % 360);
  return fmt::format("hsl({},45%,80%)", static_cast<int>(std::fmod(request * 137.508, 360.0)));
}

class Drawing {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
    svg_ += '\n';
  }
  void text(double x, double y, std::string_view anchor, int size, std::string_view words) {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}</text>)", x, y, anchor,
        size, words);
  }
  std::string take() { return std::move(svg_); }

 private:
  std::string svg_;
};

// One pipeline's bars.
struct Panel {
  const PipelineShape& shape;
  PlanView::Section section;
  std::string_view name;
  std::vector<double> costs;
  double busiest, mean;

  Panel(const PipelineShape& s, const PlanView::Section& list, std::string_view title)
      : shape(s), section(list), name(title), costs(cta_costs(s, list)) {
    busiest = *std::max_element(costs.begin(), costs.end());
    mean = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(costs.size());
  }
  // Few CTAs get thick bars; 264 of them still get four pixels each.
  int row_height() const { return std::clamp(1100 / section.num_ctas(), 3, 18); }
  int height() const { return kTitle + row_height() * section.num_ctas() + kAxis; }
  double width_of(double cost) const { return cost / busiest * kPlotWidth; }
};

// What a browser shows where the pointer rests on a bar.
std::string tip(int cta, const WorkItem& first, std::size_t count) {
  const std::string whose = first.request < 0
                                ? fmt::format("part {} of what requests from {} on share, {} query rows", prefix_state(first),
                                              first_request(first), first.qo_len)
                                : fmt::format("request {}", first.request);
  if (first.partial < 0) return fmt::format("CTA {}, {}: {} whole item{}", cta, whose, count, count == 1 ? "" : "s");
  const int heads = first.kv_head_end - first.kv_head_begin;
  return fmt::format("CTA {}, {}: kv head{} {}{}, KV tiles {} to {}", cta, whose, heads > 1 ? "s" : "", first.kv_head_begin,
                     heads > 1 ? fmt::format(" to {}", first.kv_head_end - 1) : "", first.tile_begin, first.tile_end - 1);
}

// Neighbouring items that look the same become one rectangle: 300 small items a CTA stay drawable.
// A piece is hatched: on bars of three pixels an outline would hide the colour.
void draw_bar(Drawing& drawing, const Panel& panel, const Ranking& ranking, int cta, double y) {
  const auto items = panel.section.items_of(cta);
  double begin = 0;
  for (std::size_t i = 0; i < items.size();) {
    const std::size_t first = i;
    const bool piece = items[i].partial >= 0;
    double end = begin;
    do {
      end += cost_of(panel.shape, items[i++]);
    } while (i < items.size() && items[i].request == items[first].request && !piece &&
             items[i].partial < 0);
    const double seam = piece ? 1 : 0;  // so that two pieces of a request do not look like one
    const std::string place = fmt::format(
        R"(x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{}")", kMargin + panel.width_of(begin), y,
        std::max(0.2, panel.width_of(end - begin) - seam), panel.row_height() - 1);
    drawing.add(R"(<rect {} fill="{}"><title>{}</title></rect>)", place,
                colour_of(ranking, first_request(items[first])), tip(cta, items[first], i - first));
    if (items[first].request < 0) drawing.add(R"(<rect {} class="prefix"/>)", place);
    if (piece) drawing.add(R"(<rect {} class="piece"/>)", place);
    begin = end;
  }
}

// 500, 15k, 1.5M: costs of a long batch run into millions.
std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  return value >= 1e4 ? fmt::format("{:g}k", value / 1e3) : fmt::format("{:g}", value);
}

void draw_axis(Drawing& drawing, const Panel& panel, double top, double bottom) {
  // A round step that gives 4 to 10 numbers.
  double step = std::pow(10.0, std::floor(std::log10(panel.busiest)));
  while (panel.busiest / step < 4) step /= 2;
  for (int i = 0; i * step <= panel.busiest; ++i) {
    const double x = kMargin + panel.width_of(i * step);
    drawing.add(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#999"/>)", x,
                bottom, bottom + 4);
    drawing.text(x, bottom + 16, "middle", 11, short_number(i * step));
  }
  drawing.text(kMargin + kPlotWidth / 2.0, bottom + 32, "middle", 12,
               "cost (time by the cost model)");
  const double mean = kMargin + panel.width_of(panel.mean);
  drawing.add(
      R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#000" stroke-dasharray="4 3"/>)",
      mean, top - 4, bottom);
  drawing.text(mean, top - 7, "end", 11, "mean");
}

void draw_panel(Drawing& drawing, const Panel& panel, const Ranking& ranking, double y) {
  drawing.text(
      kMargin, y + 18, "start", 15,
      fmt::format("{}: {} items on {} CTAs, {} cut streams, busiest CTA {:.3f} of the mean", panel.name,
                  panel.section.items.size(), panel.section.num_ctas(), panel.section.num_joins(),
                  panel.mean > 0 ? panel.busiest / panel.mean : 1.0));
  const double top = y + kTitle;
  const int every = std::max(1, 20 / panel.row_height());
  for (int cta = 0; cta < panel.section.num_ctas(); ++cta) {
    const double row = top + cta * panel.row_height();
    if (cta % every == 0)
      drawing.text(kMargin - 6, row + panel.row_height() / 2.0 + 4, "end", 10,
                   fmt::format("{}", cta));
    draw_bar(drawing, panel, ranking, cta, row);
  }
  drawing.text(kMargin - 6, top - 7, "end", 11, "CTA");
  draw_axis(drawing, panel, top, top + panel.row_height() * panel.section.num_ctas());
}

void draw_legend(Drawing& drawing, const PlanView& view, const Ranking& ranking) {
  const int x = kMargin + kPlotWidth + 24;
  double y = kTitle + 10;
  drawing.text(x, y, "start", 12, "costliest requests (share of all cost)");
  for (const int request : ranking.largest) {
    const RequestRecord& record = view.requests()[static_cast<std::size_t>(request)];
    y += 18;
    drawing.add(R"(<rect x="{}" y="{:.1f}" width="12" height="12" fill="{}"/>)", x, y - 10,
                colour_of(ranking, request));
    drawing.text(x + 18, y, "start", 11,
                 fmt::format("{}: qo_len {}, kv_len {} ({:.2g} %)", request, record.qo_len,
                             record.kv_len, 100 * ranking.share_of(request)));
  }
  if (ranking.cost.size() > ranking.largest.size()) {
    y += 18;
    drawing.text(x + 18, y, "start", 11,
                 fmt::format("{} others, pale", ranking.cost.size() - ranking.largest.size()));
  }
  y += 26;
  const std::string box = fmt::format(R"(x="{}" y="{:.1f}" width="12" height="12")", x, y - 10);
  drawing.add(R"(<rect {0} fill="#bbb"/><rect {0} class="piece"/>)", box);
  drawing.text(x + 18, y, "start", 11, "hatched: piece of a cut stream");
  if (view.header().prefix_states == 0) return;
  y += 18;
  const std::string dotted = fmt::format(R"(x="{}" y="{:.1f}" width="12" height="12")", x, y - 10);
  drawing.add(R"(<rect {0} fill="#999"/><rect {0} class="prefix"/>)", dotted);
  drawing.text(x + 18, y, "start", 11, "dotted: prefix that requests share,");
  drawing.text(x + 18, y + 14, "start", 11, "in the colour of the first of them");
}

}  // namespace

std::string draw_svg(const PlanConfig& config, std::span<const std::byte> plan) {
  const PlanView view(plan);
  const Ranking ranking = rank(config, view);
  std::vector<Panel> panels;
  for (int p = 0; p < kNumPipelines; ++p) {
    const PlanView::Section section = view.section(static_cast<Pipeline>(p));
    if (!section.items.empty()) panels.emplace_back(config.pipeline[p], section, kNames[p]);
  }
  int height = kTitle;
  for (const Panel& panel : panels) height += panel.height();
  height = std::max(height, kTitle + 110 + 18 * static_cast<int>(ranking.largest.size()));

  Drawing drawing;
  drawing.add(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif">)",
      kMargin + kPlotWidth + kLegend, height);
  drawing.add("<title>Work list of {} requests</title>", view.header().num_requests);
  drawing.add("{}", kStyle);
  drawing.add(R"(<rect width="100%" height="100%" fill="#fff"/>)");
  drawing.text(kMargin, 26, "start", 18,
               fmt::format("Work list of {} requests", view.header().num_requests));
  if (panels.empty())
    drawing.text(kMargin, 60, "start", 14, "No request has query rows: every CTA is idle.");
  double y = kTitle - 8;
  for (const Panel& panel : panels) {
    draw_panel(drawing, panel, ranking, y);
    y += panel.height();
  }
  draw_legend(drawing, view, ranking);
  drawing.add("</svg>");
  return drawing.take();
}

}  // namespace heddle
