// What stands behind the public handles. Internal to the room.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/hook_source.h"
#include "engine/host_kernel.h"
#include "runtime/driver.h"
#include "runtime/kernel_cache.h"
#include "runtime/nvrtc.h"

namespace heddle::detail {

// A kernel as the driver holds it, ready to launch. Loading one costs some 0.2 ms, so all Attentions of
// an Engine that have the same kernel share it; it is unloaded with the last of them.
struct LoadedModule {
  Module module;
  Kernel kernel;
  int registers = 0;
  int ctas_per_sm = 0;  // that fit
};

struct EngineState {
  explicit EngineState(const EngineOptions& options);

  EngineOptions options;
  DeviceInfo info;
  std::optional<Device> device;  // empty on the CPU
  KernelCache cache;
  VariantRegistry variants;
  mutable std::mutex mutex;  // guards variants, nvrtc and modules
  std::unique_ptr<NvrtcCompiler> nvrtc;
  std::map<std::string, std::weak_ptr<const LoadedModule>> modules;  // by the cache's key

  bool on_gpu() const { return device.has_value(); }
  // Programmatic dependent launch: the kernels wait themselves. Requires: on_gpu().
  bool has_dependent_launch() const { return device->major() >= 9; }
  NvrtcCompiler& nvrtc_compiler();
};

// One kernel of the launch set.
struct LoadedKernel {
  std::shared_ptr<const LoadedModule> loaded;
  Kernel kernel;
  TileConfig tile{};
  KernelInfo info;
};

struct AttentionState {
  std::shared_ptr<EngineState> engine;
  AttentionConfig config;
  Variant variant;
  std::vector<double> defaults;  // of every param, constants settled
  bool has_every_default = true;  // false: plan() and run() must give some run-time param
  ArgLayout args;
  float sm_scale = 0;
  PlanConfig plan;
  std::array<LoadedKernel, kNumPipelines> gpu;
  LoadedKernel append_kv;  // where the config asks for it
  LoadedKernel transformed_keys;  // where there may be any
  HostKernel host;
};

// The host copies of plans that may still be on their way to the device. A slot is written again
// only after its copy has finished, so plan() never waits unless kSlots copies are under way.
class PlanRing {
 public:
  static constexpr int kSlots = 8;
  PlanRing(std::size_t bytes, bool pinned);

  std::span<std::byte> next();  // waits for the slot's last copy
  void copied(Stream stream);   // the slot's copy has been put on the stream
  std::span<const std::byte> current() const;

 private:
  std::size_t bytes_;
  std::vector<PinnedBuffer> pinned_;
  std::vector<EventHandle> events_;
  std::vector<std::byte> plain_;
  int slot_ = -1;
};

// What the params of one call come to. A serving loop gives the same ones in every layer, so they are
// settled once and compared from then on.
struct SettledParams {
  ParamValues given;
  bool is_settled = false;
  std::vector<double> values;  // of every param
  MaskBounds mask;
  VariantArgs args{};  // tensors are put in by every run()
};

struct WorkspaceState {
  WorkspaceState(std::shared_ptr<const AttentionState> attention, const Maxima& maxima);

  std::shared_ptr<const AttentionState> owner;  // kept, so that no later Attention has its address
  Planner planner;
  PlanRing ring;
  unsigned append_ctas = 0;  // grid of append_kv
  TensorMaps::Map transformed_map{};  // of append's transformed keys
  bool transformed_usable = false;
  DeviceBuffer device;
  std::vector<std::byte> host;  // the CPU device's memory, in place of `device`
  std::size_t host_offset = 0;  // first byte of it that is aligned
  EventHandle handover;
  Stream last_stream = nullptr;
  bool used = false;

  bool planned = false;
  PlanSummary summary;
  MaskBounds mask;
  SettledParams of_plan, of_run;  // as last given to each

  std::byte* base();  // device memory of the workspace (host memory on the CPU)
};

}  // namespace heddle::detail
