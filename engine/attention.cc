#include <algorithm>
#include <cstring>

#include "engine/call.h"
#include "engine/check_tensors.h"
#include "engine/launch_set.h"
#include "engine/tensor_maps.h"
#include "engine/variant_args.h"
#include "planner/plan_view.h"

namespace heddle {
namespace {

using detail::AttentionState;
using detail::SettledParams;
using detail::WorkspaceState;

void point_at_section(AttentionParams& p, WorkspaceState& ws, const PlanConfig& plan, int pipeline) {
  const auto& section = ws.planner.layout().section[pipeline];
  p.partial_o = reinterpret_cast<float*>(ws.base() + section.partial_o);
  p.partial_lse = reinterpret_cast<float*>(ws.base() + section.partial_lse);
  p.cta_begin = reinterpret_cast<const int32_t*>(ws.base() + section.cta_begin);
  p.tile_rows = plan.pipeline[pipeline].tile_rows;
  p.tile_kv = plan.pipeline[pipeline].tile_kv;
}

// Keys that no kernel transforms ahead on the CPU take no room there.
Maxima maxima_of(const AttentionState& a, Maxima maxima) {
  if (a.config.max_requests > 0 && maxima.max_requests > a.config.max_requests)
    fail(ErrorKind::invalid_argument, "max_requests is {}; this Attention was made for max_requests = {}.",
         maxima.max_requests, a.config.max_requests);
  if (!a.engine->on_gpu() && transforms_keys(a.variant, a.config)) maxima.max_transformed_keys = 0;
  return maxima;
}

// In front of both pipelines: append, which reads the keys, may stand right behind.
void transform_keys(const AttentionState& a, AttentionParams& p, SettledParams& settled, Stream stream) {
  const detail::LoadedKernel& k = a.transformed_keys;
  void* launch_args[] = {&p, &settled.args};
  k.kernel.launch({static_cast<unsigned>(a.engine->device->num_sms() * k.loaded->ctas_per_sm)},
                  {static_cast<unsigned>(k.tile.warps * 32)}, 0, stream, launch_args, a.engine->has_dependent_launch());
}

// Decode begins where append leaves SMs free, and waits for the states that append leaves of shared prefixes.
constexpr Pipeline kLaunchOrder[] = {Pipeline::append, Pipeline::decode};

}  // namespace

Workspace Attention::workspace(const Maxima& maxima) const {
  const AttentionState& a = checked(state_);
  if (a.engine->on_gpu()) a.engine->device->make_current();
  Workspace workspace;
  workspace.state_ = std::make_shared<WorkspaceState>(state_, maxima_of(a, maxima));
  return workspace;
}

std::size_t Attention::workspace_bytes(const Maxima& maxima) const {
  const AttentionState& a = checked(state_);
  return workspace_layout(a.plan, maxima_of(a, maxima)).total_bytes;
}

PlanSummary Attention::plan(const Batch& batch, Workspace& workspace, Stream stream, const ParamValues& params) {
  const AttentionState& a = checked(state_);
  WorkspaceState& ws = checked(workspace.state_, a);
  check_stream(*a.engine, stream, "plan()");
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
  if (a.config.append_kv != AppendKv::none) detail::check_new_rows(bytes.first(ws.summary.plan_bytes));
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
  check_stream(*a.engine, stream, "run()");
  SettledParams& settled = detail::settle_as_planned(a, ws, params, "run()");
  AttentionParams p = detail::checked_params(a, ws, tensors);
  pack_tensors(a.variant, a.args, tensors.variant, shape_words(a, ws), settled.values, settled.args);
  p.plan = reinterpret_cast<const uint8_t*>(ws.base());
  if (a.config.share_prefixes) {
    p.prefix_o = reinterpret_cast<float*>(ws.base() + ws.planner.layout().prefix_o);
    p.prefix_lse = reinterpret_cast<float*>(ws.base() + ws.planner.layout().prefix_lse);
  }
  const std::int64_t max_transformed_keys = ws.planner.layout().max_transformed_keys;
  if (max_transformed_keys > 0) p.transformed_keys = ws.base() + ws.planner.layout().transformed_keys;
  if (a.engine->options.check_pages)
    detail::check_page_ids(a, ws, tensors.kv_indices, std::min(tensors.k.shape[0], tensors.v.shape[0]), stream);
  if (a.engine->on_gpu()) follow(a, ws, stream);
  if (max_transformed_keys > 0) transform_keys(a, p, settled, stream);
  for (const Pipeline which : kLaunchOrder) {
    const int pipeline = static_cast<int>(which);
    if (!a.plan.pipeline[pipeline].present) continue;
    point_at_section(p, ws, a.plan, pipeline);
    if (!a.engine->on_gpu()) {
      a.host.run(&p, &settled.args, pipeline);
      continue;
    }
    const detail::LoadedKernel& k = a.gpu[pipeline];
    TensorMaps maps = tensor_maps(a.config, k.tile, tensors, p);  // the mma.sync kernels take no third argument
    maps.transformed = ws.transformed_map, maps.transformed_usable = ws.transformed_usable;
    void* launch_args[] = {&p, &settled.args, &maps};
    k.kernel.launch({static_cast<unsigned>(a.plan.pipeline[pipeline].num_ctas)},
                    {static_cast<unsigned>(k.tile.warps * 32)}, k.tile.smem_bytes, stream, launch_args,
                    a.engine->has_dependent_launch());
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
  for (const detail::LoadedKernel* kernel : {&state_->append_kv, &state_->transformed_keys})
    if (kernel->kernel) list.push_back(kernel->info);
  return list;
}

}  // namespace heddle
