// Door of the room `engine`: the public API, and the glue between the other rooms.
//
//   register a variant (JSON) -> make an Attention for a model's shapes -> once per decode step:
//   plan(batch) -> run() in every layer, directly or by replaying a CUDA graph
//
// An Engine owns one device (the GPU, or the CPU where there is none), the variants it knows and
// the JIT cache. attention() renders one unit per kernel of the launch set and compiles or finds
// it; nothing is ever compiled later. plan() is CPU work and one asynchronous copy into the
// workspace. run() launches a fixed set of persistent kernels whose grids never change: every
// figure of the step (requests, lengths, pages, items) is read from the workspace on the device,
// so a graph captured once serves every batch within the workspace's maxima.
//
// Around that stand append_kv(), which brings a step's new K and V rows to their pages, and
// Engine::merge_states() (merge_states.h), for partial states of other origin.
//
// An Engine may be used from several threads; an Attention too, as long as each thread has its own
// Workspace. A Workspace belongs to one stream at a time: plan() and run() on another stream first
// make that stream wait for the one used before, which must still exist then. The CPU device has no
// streams, and refuses any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/types.h"
#include "planner/plan.h"
#include "variants/variant.h"

namespace heddle {

enum class DeviceKind { automatic, cuda, cpu };

struct EngineOptions {
  DeviceKind device = DeviceKind::automatic;  // automatic: CUDA device 0, or the CPU if there is none
  int ordinal = 0;
  bool use_disk_cache = true;
  std::string cache_dir;  // empty: $HEDDLE_CACHE_DIR, $XDG_CACHE_HOME/heddle, $HOME/.cache/heddle
  bool check_pages = false;  // debug: run() reads kv_indices back and refuses ids out of range
  std::vector<std::string> nvrtc_dirs;  // folders that may hold libnvrtc, tried before the usual ones
};

// What append_kv() does with a step's new rows of K and V on their way to the pages.
//
// Whoever applies a transform (rotary positions, q/k norm), one must do it once. So it is not a second
// variant beside the one of attention, whose params could differ, but a choice of the one Attention
// that appends and reads: `transform` takes the hooks out of the kernels that read.
enum class AppendKv {
  none,       // append_kv() is refused, and no kernel is compiled for it
  copy,       // rows are stored as they are; attention transforms keys and values as it reads them
  transform,  // rows are stored as the variant's key_ and value_transform leave them, rounded to
              // kv_dtype; attention reads them as they are. A hook sees kv_len and qo_len of the step
              // that appends, and not of every later one
};
std::string_view name_of(AppendKv mode);  // "none", "copy", "transform"

// A model's attention, as fixed when it is made.
struct AttentionConfig {
  std::string variant = "softmax";
  int num_qo_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;              // of q and k: a multiple of 8 up to 256, which kernels pad to one of 16 inside
  int head_dim_vo = 0;           // of v and o, the same; 0: head_dim
  DType q_dtype = DType::bf16;   // of q and o
  DType kv_dtype = DType::bf16;  // of k and v; equal to q_dtype
  int page_size = 16;            // 0: ragged K/V
  float sm_scale = 0;            // 0: 1 / sqrt(head_dim)
  int max_qo_len = 0;            // 0: any. group * max_qo_len <= 16 leaves the append kernel out
  int max_requests = 0;          // 0: any; a Workspace for more is refused. max_requests * num_kv_heads up to the GPU's SMs
                                 // have a decode tile of their own
  // A request's bits do not depend on what else is in the batch: fixed chunks, dealt to CTAs as they
  // are. Costs up to 8 % of a full batch's time by the cost model, more of a single short request's,
  // and a workspace that grows with max_kv_tokens (planner/split_chunks.h). The kernels are the same.
  bool batch_invariant = false;
  // plan() looks for prefixes that neighbouring requests share (Batch::kv_indices), up to three that nest, and
  // has their keys read once for all of them, where that is faster. Needs pages, at most 16 query heads to a kv head, and a
  // variant whose rows see those keys alike: no window, sinks or given ranges, and no hook that asks for a position,
  // a length or the request. Not with batch_invariant. Keeps the append kernel in the launch set.
  bool share_prefixes = false;
  AppendKv append_kv = AppendKv::none;  // all Attentions over the same pages need the same, transform or not
  bool portable = false;         // only kernels that every architecture has (mma.sync, no wgmma)
  ParamValues constants;         // values for params with "constant": true

  int vo_dim() const { return head_dim_vo != 0 ? head_dim_vo : head_dim; }
};

// Device arrays of one run(); host arrays on the CPU device.
struct Tensors {
  Tensor q;    // [num_qo_rows, num_qo_heads, head_dim]
  Tensor k;    // paged NHD: [num_pages, page_size, num_kv_heads, head_dim]; HND: give `layout`;
  Tensor v;    // ragged: [num_kv_rows, num_kv_heads, head_dim]; v with head_dim_vo
  Tensor o;    // [num_qo_rows, num_qo_heads, head_dim_vo]
  Tensor lse;  // [num_qo_rows, num_qo_heads] f32, natural log; leave data null if not wanted
  KvLayout layout = KvLayout::NHD;           // of pages; NHD when ragged
  const std::int32_t* kv_indices = nullptr;  // page ids, on the device; null when ragged
  std::map<std::string, Tensor> variant;     // the variant's own tensors by name
};

// Device arrays of one append_kv(); host arrays on the CPU device. Rows of new_k and new_v stand as
// those of q do: request r's begin at qo_indptr[r]. They may be views of a fused QKV array; they must
// not overlap k and v.
struct AppendTensors {
  Tensor new_k;  // [num_qo_rows, num_kv_heads, head_dim]
  Tensor new_v;  // the same with head_dim_vo
  Tensor k;      // where they go: k, v, layout and kv_indices as in Tensors
  Tensor v;
  KvLayout layout = KvLayout::NHD;
  const std::int32_t* kv_indices = nullptr;
  std::map<std::string, Tensor> variant;  // AppendKv::transform: all of the variant's, as in Tensors
};

struct KernelInfo {
  // "decode", "append", "append_kv", "transformed_keys" or "merge_states"; "host" on the CPU device
  std::string kernel;
  std::string arch;    // "sm_90a", or "cpu"
  double compile_ms = 0;  // of the compile that made it, whenever that was
  double load_ms = 0;     // from the request to a loaded kernel, this time
  int registers = 0;
  int shared_bytes = 0;
  int spill_bytes = 0;
  std::string origin;  // "compiled", "disk", "memory", "built in"
};

struct DeviceInfo {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;  // "NVIDIA H200", or "CPU"
  std::string arch;
  int num_sms = 0;
  std::string why_cpu;  // why there is no GPU; empty on the GPU
};

namespace detail {
struct EngineState;
struct AttentionState;
struct WorkspaceState;
struct MergeState;
}  // namespace detail

// Fixed size, fixed address; holds the plan and the partial states.
class Workspace {
 public:
  std::size_t bytes() const;
  const WorkspaceLayout& layout() const;
  // The current plan's bytes on the host, as copied to the device (PlanHeader first).
  std::span<const std::byte> plan_bytes() const;
  const PlanSummary& summary() const;

 private:
  friend class Attention;
  std::shared_ptr<detail::WorkspaceState> state_;
};

class Attention {
 public:
  // Allocates. Throws where a maximum is negative or does not fit 32-bit row counts.
  Workspace workspace(const Maxima& maxima) const;
  std::size_t workspace_bytes(const Maxima& maxima) const;

  // Checks the batch, writes the work list and starts its copy, behind whatever the workspace was
  // last used for on any stream. Where append_kv is asked for, each request needs kv_len >= qo_len. `params` decide declared masks (a window); run() must get the same
  // values for those.
  // The engine does not see graphs being launched: plan on the stream on which the graph will be
  // launched, or order the two yourself. Refused while `stream` is being captured.
  PlanSummary plan(const Batch& batch, Workspace& workspace, Stream stream = nullptr,
                   const ParamValues& params = {});

  // Launches, behind the last plan() or run() of the workspace on any stream. Every tensor is checked
  // against the config and the plan first.
  // While `stream` is being captured nothing runs, so nothing is waited for and nothing later waits
  // for it: what a launch of the graph has to follow is what its stream says (see plan()).
  void run(Workspace& workspace, const Tensors& tensors, const ParamValues& params = {},
           Stream stream = nullptr);

  // Stores the new K and V rows of the step that was planned last, before its run(): request r's are its
  // last qo_len keys, positions kv_len - qo_len to kv_len - 1. The lengths are those of plan(), which
  // already count the new keys, so there is nothing to give but the arrays: one launch serves all
  // requests, and inside a captured graph it follows whatever was planned before the replay, as run()
  // does. Nothing else in the pages is written or read. Streams and captures are as in run(); params
  // too, with AppendKv::transform, and none are taken with AppendKv::copy.
  // Throws where config().append_kv is none, and as run() does for its tensors.
  void append_kv(Workspace& workspace, const AppendTensors& tensors, const ParamValues& params = {},
                 Stream stream = nullptr);

  const AttentionConfig& config() const;
  const Variant& variant() const;
  const PlanConfig& plan_config() const;
  std::vector<KernelInfo> kernels() const;

 private:
  friend class Engine;
  std::shared_ptr<detail::AttentionState> state_;
};

class MergeStates;
struct MergeConfig;

class Engine {
 public:
  explicit Engine(EngineOptions options = {});

  void register_variant(Variant variant);
  void register_variant_file(const std::string& path);
  const VariantRegistry& variants() const;

  // Compiles, or finds in a cache, every kernel of the launch set.
  Attention attention(const AttentionConfig& config);

  // Compiles, or finds in a cache, the kernel that merges partial states. See merge_states.h.
  MergeStates merge_states(const MergeConfig& config);

  const DeviceInfo& device() const;

 private:
  std::shared_ptr<detail::EngineState> state_;
};

}  // namespace heddle
