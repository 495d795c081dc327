// A workload's variant: found, read or composed, and what its rows then see.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/error.h"
#include "tools/workload.h"

namespace heddle::tools {
namespace {

// The rows' ranges where the variant asks for them; it must then be said which, and else not.
void settle_ranges(const Variant* variant, Workload& w) {
  const bool is_said = w.documents > 0 || w.prefix > 0;
  const bool is_given = variant != nullptr && variant->mask.rows_given;
  if (is_given != is_said)
    fail(ErrorKind::invalid_argument,
         "The workload {} has {}.", w.name,
         is_said ? "\"documents\" or a \"prefix\", which only a variant whose mask has \"rows\": \"given\" takes"
                 : "neither \"documents\" nor a \"prefix\", but the rows of its variant have their ranges given; say which");
  if (is_given)
    w.ranges = w.documents > 0 ? document_ranges(w.qo_lens, w.kv_lens, w.documents) : prefix_ranges(w.qo_lens, w.kv_lens, w.prefix);
}

}  // namespace

void settle_variant(Engine& engine, Workload& w) {
  if (!w.compose.empty()) {
    w.variant = fmt::format("bench_{}", fmt::join(w.compose, "_"));
    const std::string json =
        fmt::format(R"({{"name": "{}", "compose": ["{}"]}})", w.variant, fmt::join(w.compose, "\", \""));
    engine.register_variant(Variant::from_json(json, "the workload " + w.name, engine.variants()));
  }
  if (w.variant.empty()) return settle_ranges(nullptr, w);
  w.variant = resolve_variant(engine, w.variant);
  const Variant& variant = engine.variants().at(w.variant);
  w.mask = variant.bounds(variant.resolve(w.params));
  settle_ranges(&variant, w);
}

WorkloadVariant variant_of(const Engine& engine, const Workload& w) {
  if (!w.variant.empty()) return {engine.variants().at(w.variant), w.params};
  ParamValues params;
  std::vector<std::string> parts;
  if (w.soft_cap > 0) parts.push_back("soft_cap");
  if (w.window_left >= 0) parts.push_back("sliding_window");
  if (w.causal && w.window_left < 0) parts.push_back("causal");
  if (parts.empty()) parts.push_back("softmax");
  if (w.soft_cap > 0) params["cap"] = w.soft_cap;
  if (w.window_left >= 0) params["window"] = w.window_left;
  const std::string json = fmt::format(R"({{"name": "bench_{}", "compose": ["{}"]}})",
                                       fmt::join(parts, "_"), fmt::join(parts, "\", \""));
  return {Variant::from_json(json, "the workload " + w.name, engine.variants()), params};
}

}  // namespace heddle::tools
