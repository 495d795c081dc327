#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/check_tensors.h"
#include "engine/state.h"
#include "engine/tensor_maps.h"
#include "engine/variant_args.h"
#include "planner/plan_view.h"

namespace heddle {
namespace {

constexpr int kFirstMajorWithPdl = 9;  // programmatic dependent launch: the kernels wait themselves

using detail::AttentionState;
using detail::SettledParams;
using detail::WorkspaceState;

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

// Puts `stream` behind whatever the workspace was last used for.
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

void point_at_section(AttentionParams& p, WorkspaceState& ws, const PlanConfig& plan, int pipeline) {
  const auto& section = ws.planner.layout().section[pipeline];
  p.partial_o = reinterpret_cast<float*>(ws.base() + section.partial_o);
  p.partial_lse = reinterpret_cast<float*>(ws.base() + section.partial_lse);
  p.cta_begin = reinterpret_cast<const int32_t*>(ws.base() + section.cta_begin);
  p.tile_rows = plan.pipeline[pipeline].tile_rows;
  p.tile_kv = plan.pipeline[pipeline].tile_kv;
}

// Decode joins the states that append leaves of shared prefixes.
std::array<Pipeline, kNumPipelines> launch_order(const AttentionConfig& config) {
  if (config.share_prefixes) return {Pipeline::append, Pipeline::decode};
  return {Pipeline::decode, Pipeline::append};
}

bool reads_word(const Variant& variant, std::string_view word) {
  for (const TensorParam& tensor : variant.tensors)
    for (const TensorAxis& axis : tensor.shape)
      if (axis.param < 0 && axis.word == word) return true;
  return false;
}

// What the words in the shapes of the variant's tensors stand for; run() does without where it has none.
ShapeWords shape_words(const AttentionState& a, const WorkspaceState& ws) {
  if (a.variant.tensors.empty()) return {};
  const std::span<const RequestRecord> requests = PlanView(ws.ring.current()).requests();
  ShapeWords words{.num_qo_heads = a.config.num_qo_heads, .num_kv_heads = a.config.num_kv_heads,
                   .head_dim = a.config.head_dim, .num_qo_rows = ws.summary.num_qo_rows,
                   .num_requests = static_cast<std::int64_t>(requests.size()), .kv_len = ws.summary.max_kv_len};
  // A look at every request, so only where a shape says the word.
  if (!reads_word(a.variant, "qo_len")) return words;
  words.qo_len = 0;
  for (const RequestRecord& request : requests) words.qo_len = std::max<std::int64_t>(words.qo_len, request.qo_len);
  return words;
}

std::string describe(const MaskBounds& m) {
  const auto bound = [](int value) { return value == kUnbounded ? std::string("none") : std::to_string(value); };
  return fmt::format("window_left {}, window_right {}, sink {}", bound(m.window_left), bound(m.window_right), m.sink);
}

}  // namespace

Workspace Attention::workspace(const Maxima& maxima) const {
  const AttentionState& a = checked(state_);
  if (a.engine->on_gpu()) a.engine->device->make_current();
  Workspace workspace;
  workspace.state_ = std::make_shared<WorkspaceState>(state_, maxima);
  return workspace;
}

std::size_t Attention::workspace_bytes(const Maxima& maxima) const {
  return workspace_layout(checked(state_).plan, maxima).total_bytes;
}

PlanSummary Attention::plan(const Batch& batch, Workspace& workspace, Stream stream, const ParamValues& params) {
  const AttentionState& a = checked(state_);
  WorkspaceState& ws = checked(workspace.state_, a);
  const MaskBounds mask = settle(a, params, ws.of_plan).mask;
  if (a.engine->on_gpu()) {
    a.engine->device->make_current();
    if (is_capturing(stream))
      fail(ErrorKind::invalid_argument,
           "plan() was given a stream that is being captured: every launch of the graph would bring this very plan "
           "back. Plan before the capture, and before each launch.");
    take_over(ws, stream);
  }
  const std::span<std::byte> bytes = ws.ring.next();
  ws.planned = false;
  ws.summary = ws.planner.plan(batch, mask, bytes);
  ws.mask = mask;
  if (a.engine->on_gpu()) {
    copy_to_device_async(ws.base(), bytes.data(), ws.summary.copy_bytes, stream);
    ws.ring.copied(stream);
  } else {
    std::memcpy(ws.base(), bytes.data(), ws.summary.plan_bytes);
  }
  ws.planned = true;
  return ws.summary;
}

void Attention::run(Workspace& workspace, const Tensors& tensors, const ParamValues& params, Stream stream) {
  const AttentionState& a = checked(state_);
  WorkspaceState& ws = checked(workspace.state_, a);
  if (!ws.planned) fail(ErrorKind::invalid_argument, "run() was called before plan() on this Workspace.");
  SettledParams& settled = settle(a, params, ws.of_run);
  if (std::memcmp(&settled.mask, &ws.mask, sizeof ws.mask) != 0)
    fail(ErrorKind::invalid_argument, "run() got params for {}, but the plan was made for {}; plan again.",
         describe(settled.mask), describe(ws.mask));
  AttentionParams p = detail::checked_params(a, ws, tensors);
  pack_tensors(a.variant, a.args, tensors.variant, shape_words(a, ws), settled.values, settled.args);
  p.plan = reinterpret_cast<const uint8_t*>(ws.base());
  if (a.config.share_prefixes) {
    p.prefix_o = reinterpret_cast<float*>(ws.base() + ws.planner.layout().prefix_o);
    p.prefix_lse = reinterpret_cast<float*>(ws.base() + ws.planner.layout().prefix_lse);
  }
  if (a.engine->options.check_pages) detail::check_page_ids(a, ws, tensors, stream);
  if (a.engine->on_gpu()) {
    a.engine->device->make_current();
    // A capture runs nothing now, and cannot wait for what was put on a stream outside of it.
    if (stream != ws.last_stream && !is_capturing(stream)) take_over(ws, stream);
  }
  for (const Pipeline which : launch_order(a.config)) {
    const int pipeline = static_cast<int>(which);
    if (!a.plan.pipeline[pipeline].present) continue;
    point_at_section(p, ws, a.plan, pipeline);
    if (!a.engine->on_gpu()) {
      a.host.run(&p, &settled.args, pipeline);
      continue;
    }
    const detail::LoadedKernel& k = a.gpu[pipeline];
    TensorMaps maps = tensor_maps(a.config, k.tile, tensors, p);  // the mma.sync kernels take no third argument
    void* launch_args[] = {&p, &settled.args, &maps};
    k.kernel.launch({static_cast<unsigned>(a.plan.pipeline[pipeline].num_ctas)},
                    {static_cast<unsigned>(k.tile.warps * 32)}, k.tile.smem_bytes, stream, launch_args,
                    a.engine->device->major() >= kFirstMajorWithPdl);
  }
}

const AttentionConfig& Attention::config() const { return checked(state_).config; }
const Variant& Attention::variant() const { return checked(state_).variant; }
const PlanConfig& Attention::plan_config() const { return checked(state_).plan; }

std::vector<KernelInfo> Attention::kernels() const {
  std::vector<KernelInfo> list;
  if (!checked(state_).engine->on_gpu()) return {state_->host.info};
  for (const detail::LoadedKernel& kernel : state_->gpu)
    if (kernel.kernel) list.push_back(kernel.info);
  return list;
}

}  // namespace heddle
