#include "tools/plan_svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "planner/plan_view.h"

namespace heddle::tools {
namespace {

constexpr double kWidth = 1000, kLeft = 70, kTop = 40, kGap = 34;
constexpr double kRow = 5, kBar = 4;  // one CTA's line and the bar in it

double cost_of(const WorkItem& item, const CostModel& cost) {
  const double one_head = cost.per_item + cost.per_tile * double(item.tile_end - item.tile_begin);
  return one_head * (item.kv_head_end - item.kv_head_begin) + (item.partial >= 0 ? cost.per_partial : 0);
}

// Neighbouring requests get far-apart hues (steps of the golden angle).
std::string colour_of(int request) {
  const double hue = std::fmod(request * 137.508, 360.0);
  return fmt::format("hsl({:.0f},{}%,{}%)", hue, request % 2 ? 62 : 48, 44 + 9 * (request % 3));
}

double longest_cta(const PlanView::Section& list, const CostModel& cost) {
  double longest = 0;
  for (int cta = 0; cta < list.num_ctas(); ++cta) {
    double sum = 0;
    for (const WorkItem& item : list.items_of(cta)) sum += cost_of(item, cost);
    longest = std::max(longest, sum);
  }
  return longest;
}

// One pipeline's panel from `top` down. A bar outlined in black is a part that is merged later.
void draw_list(std::string& svg, const PlanView::Section& list, const PipelineShape& shape, const char* name, double top) {
  const double longest = std::max(longest_cta(list, shape.cost), 1e-9);
  const double scale = (kWidth - kLeft - 20) / longest;
  auto out = std::back_inserter(svg);
  fmt::format_to(out,
                 "<text x=\"{}\" y=\"{:.1f}\" font-weight=\"bold\">{}: {} items on {} CTAs, {} merges; "
                 "the longest CTA takes {:.4g}</text>\n",
                 kLeft, top - 8, name, list.items.size(), list.num_ctas(), list.merges.size(), longest);
  for (int cta = 0; cta < list.num_ctas(); ++cta) {
    const double y = top + cta * kRow;
    if (cta % 16 == 0) {
      fmt::format_to(out, "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#777\">{}</text>\n", kLeft - 6,
                     y + kBar, cta);
    }
    double x = kLeft;
    for (const WorkItem& item : list.items_of(cta)) {
      const double width = cost_of(item, shape.cost) * scale;
      fmt::format_to(out,
                     "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"{}><title>CTA {}: "
                     "request {}, rows {}+{}, KV heads {} to {}, tiles {} to {}{}</title></rect>\n",
                     x, y, std::max(0.3, width - 0.3), kBar, colour_of(item.request),
                     item.partial >= 0 ? " stroke=\"#000\" stroke-width=\"0.4\"" : "", cta, item.request,
                     item.row_begin, item.num_rows, item.kv_head_begin, item.kv_head_end - 1, item.tile_begin,
                     item.tile_end, item.partial >= 0 ? ", a part" : "");
      x += width;
    }
  }
}

}  // namespace

std::string plan_svg(std::span<const std::byte> plan, const PlanConfig& config) {
  static constexpr const char* kNames[kNumPipelines] = {"decode", "append"};
  std::string body;
  double top = kTop;
  for (int p = 0; p < kNumPipelines; ++p) {
    const PlanView::Section list = PlanView(plan).section(static_cast<Pipeline>(p));
    if (list.items.empty()) continue;
    draw_list(body, list, config.pipeline[p], kNames[p], top);
    top += list.num_ctas() * kRow + kGap;
  }
  if (body.empty()) body = fmt::format("<text x=\"{}\" y=\"{}\">no work</text>\n", kLeft, top);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2}\" y=\"16\" fill=\"#777\">CTAs down, planned time across, a colour a request; "
      "outlined bars are parts of a request that are merged</text>\n{3}</svg>\n",
      kWidth, top + 10, kLeft, body);
}

}  // namespace heddle::tools
