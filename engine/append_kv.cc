#include <algorithm>

#include "engine/call.h"
#include "engine/check_tensors.h"
#include "engine/variant_args.h"

namespace heddle {
namespace {

using detail::AttentionState;
using detail::WorkspaceState;

// A copy reads nothing of the variant.
void check_copy(const AttentionState& a, const WorkspaceState& ws, const AppendTensors& tensors, const ParamValues& params) {
  if (!ws.planned) fail(ErrorKind::invalid_argument, "append_kv() was called before plan() on this Workspace.");
  if (!params.empty())
    fail(ErrorKind::invalid_argument,
         "append_kv() was given param \"{}\", but with append_kv = copy it stores rows as they are and takes none.",
         params.begin()->first);
  if (!tensors.variant.empty())
    fail(ErrorKind::invalid_argument,
         "append_kv() was given tensor \"{}\" of variant {}, but with append_kv = copy it stores rows as they are and "
         "reads none.",
         tensors.variant.begin()->first, a.variant.name);
}

// What the hooks read; null for a copy.
VariantArgs* hook_args(const AttentionState& a, WorkspaceState& ws, const AppendTensors& tensors, const ParamValues& params) {
  if (a.config.append_kv == AppendKv::copy) return check_copy(a, ws, tensors, params), nullptr;
  detail::SettledParams& settled = detail::settle_as_planned(a, ws, params, "append_kv()");
  pack_tensors(a.variant, a.args, tensors.variant, shape_words(a, ws), settled.values, settled.args);
  return &settled.args;
}

}  // namespace

void Attention::append_kv(Workspace& workspace, const AppendTensors& tensors, const ParamValues& params, Stream stream) {
  const AttentionState& a = checked(state_);
  WorkspaceState& ws = checked(workspace.state_, a);
  if (a.config.append_kv == AppendKv::none)
    fail(ErrorKind::invalid_argument,
         "append_kv() was called on an Attention made with append_kv = none; make it with copy, or with transform for the "
         "variant's key_transform and value_transform to be applied there.");
  detail::check_stream(*a.engine, stream, "append_kv()");
  static VariantArgs no_args{};
  VariantArgs* args = hook_args(a, ws, tensors, params);
  if (!args) args = &no_args;
  AppendKvParams p = detail::checked_params(a, ws, tensors);
  p.plan = reinterpret_cast<const uint8_t*>(ws.base());
  if (a.engine->options.check_pages)
    detail::check_page_ids(a, ws, tensors.kv_indices, std::min(tensors.k.shape[0], tensors.v.shape[0]), stream);
  if (!a.engine->on_gpu()) return a.host.append(&p, args);
  follow(a, ws, stream);
  void* launch_args[] = {&p, args};
  a.append_kv.kernel.launch({ws.append_ctas}, {static_cast<unsigned>(a.append_kv.tile.warps * 32)}, 0, stream, launch_args,
                            a.engine->has_dependent_launch());
}

}  // namespace heddle
