#include "engine/call.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/variant_args.h"
#include "planner/plan_view.h"

namespace heddle::detail {
namespace {

// The spec's defaults with `params` put in. Constants are settled when the Attention is made.
std::vector<double> values_of(const AttentionState& a, const ParamValues& params) {
  if (params.empty() && a.has_every_default) return a.defaults;
  ParamValues all = a.config.constants;
  for (const auto& [name, value] : params) {
    for (const Param& param : a.variant.params)
      if (param.name == name && param.constant)
        fail(ErrorKind::invalid_argument, "Param \"{}\" of variant {} is a constant; give it in AttentionConfig::constants.",
             name, a.variant.name);
    all[name] = value;
  }
  return a.variant.resolve(all);
}

// By their bits: -0 is another value than 0 to a hook, and a NaN is refused each time.
bool is_same(const ParamValues& a, const ParamValues& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::bit_cast<std::uint64_t>(x.second) == std::bit_cast<std::uint64_t>(y.second) && x.first == y.first;
  });
}

bool reads_word(const Variant& variant, std::string_view word) {
  for (const TensorParam& tensor : variant.tensors)
    for (const TensorAxis& axis : tensor.shape)
      if (axis.param < 0 && axis.word == word) return true;
  return false;
}

std::string describe(const MaskBounds& m) {
  const auto bound = [](int value) { return value == kUnbounded ? std::string("none") : std::to_string(value); };
  return fmt::format("window_left {}, window_right {}, sink {}", bound(m.window_left), bound(m.window_right), m.sink);
}

}  // namespace

WorkspaceState& checked(const std::shared_ptr<WorkspaceState>& ws, const AttentionState& attention) {
  if (!ws) fail(ErrorKind::invalid_argument, "The Workspace is empty; make one with Attention::workspace().");
  if (ws->owner.get() != &attention)
    fail(ErrorKind::invalid_argument, "The Workspace was made by another Attention; their tiles and sizes differ.");
  return *ws;
}

const AttentionState& checked(const std::shared_ptr<AttentionState>& attention) {
  if (!attention) fail(ErrorKind::invalid_argument, "The Attention is empty; make one with Engine::attention().");
  return *attention;
}

void check_stream(const EngineState& engine, Stream stream, const char* call) {
  if (stream == nullptr || engine.on_gpu()) return;
  fail(ErrorKind::invalid_argument, "{} was given a stream, but this Engine runs on the CPU device, which has none.", call);
}

SettledParams& settle(const AttentionState& a, const ParamValues& params, SettledParams& settled) {
  if (settled.is_settled && is_same(settled.given, params)) return settled;
  settled.is_settled = false;
  settled.values = values_of(a, params);
  settled.mask = a.variant.bounds(settled.values);
  pack_params(a.variant, a.args, settled.values, settled.args);
  settled.given = params;
  settled.is_settled = true;
  return settled;
}

SettledParams& settle_as_planned(const AttentionState& a, WorkspaceState& ws, const ParamValues& params, const char* call) {
  if (!ws.planned) fail(ErrorKind::invalid_argument, "{} was called before plan() on this Workspace.", call);
  SettledParams& settled = settle(a, params, ws.of_run);
  if (std::memcmp(&settled.mask, &ws.mask, sizeof ws.mask) != 0)
    fail(ErrorKind::invalid_argument, "{} got params for {}, but the plan was made for {}; plan again.", call,
         describe(settled.mask), describe(ws.mask));
  return settled;
}

void take_over(WorkspaceState& ws, Stream stream) {
  if (ws.used && ws.last_stream != stream) {
    // An event recorded there would be a node of that graph, and draw `stream` into the capture.
    if (is_capturing(ws.last_stream))
      fail(ErrorKind::invalid_argument,
           "The stream that this Workspace was used on before is being captured; end the capture before using the "
           "Workspace on another stream, or capture another stream than the one that plan() was given.");
    ws.handover.record(ws.last_stream);
    stream_wait_event(stream, ws.handover);
  }
  ws.last_stream = stream;
  ws.used = true;
}

void follow(const AttentionState& a, WorkspaceState& ws, Stream stream) {
  a.engine->device->make_current();
  if (stream != ws.last_stream && !is_capturing(stream)) take_over(ws, stream);
}

ShapeWords shape_words(const AttentionState& a, const WorkspaceState& ws) {
  if (a.variant.tensors.empty()) return {};
  const std::span<const RequestRecord> requests = PlanView(ws.ring.current()).requests();
  ShapeWords words{.num_qo_heads = a.config.num_qo_heads, .num_kv_heads = a.config.num_kv_heads,
                   .head_dim = a.config.head_dim, .head_dim_vo = a.config.vo_dim(), .num_qo_rows = ws.summary.num_qo_rows,
                   .num_requests = static_cast<std::int64_t>(requests.size()), .kv_len = ws.summary.max_kv_len};
  // A look at every request, so only where a shape says the word.
  if (!reads_word(a.variant, "qo_len")) return words;
  words.qo_len = 0;
  for (const RequestRecord& request : requests) words.qo_len = std::max<std::int64_t>(words.qo_len, request.qo_len);
  return words;
}

}  // namespace heddle::detail
