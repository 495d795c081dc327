#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/state.h"
#include "engine/tensor_maps.h"
#include "planner/layout.h"

namespace heddle {
namespace detail {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

// A CTA for every item that a plan may have, up to what the GPU holds at once: an item is short work
// behind a chain of loads, so items must not wait for each other.
unsigned append_grid(const AttentionState& a, const Maxima& maxima) {
  if (!a.append_kv.kernel) return 0;
  std::int64_t items = 0;
  for (Pipeline pipeline : {Pipeline::decode, Pipeline::append}) items += plan_bounds(a.plan, maxima, pipeline).items;
  const std::int64_t most = std::int64_t{a.engine->device->num_sms()} * a.append_kv.loaded->ctas_per_sm;
  return static_cast<unsigned>(std::clamp<std::int64_t>(items, 1, most));
}

}  // namespace

PlanRing::PlanRing(std::size_t bytes, bool pinned) : bytes_(bytes) {
  if (!pinned) {
    plain_.resize(bytes + kWorkspaceAlignment);
    return;
  }
  for (int i = 0; i < kSlots; ++i) {
    pinned_.emplace_back(bytes);
    events_.push_back(EventHandle::create());
  }
}

std::span<std::byte> PlanRing::next() {
  if (pinned_.empty()) {
    slot_ = 0;
    const auto address = reinterpret_cast<std::uintptr_t>(plain_.data());
    return {plain_.data() + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment, bytes_};
  }
  const int next = (slot_ + 1) % kSlots;
  events_[next].synchronize();  // an event that was never recorded has been reached
  slot_ = next;
  return {pinned_[next].data(), bytes_};
}

void PlanRing::copied(Stream stream) {
  if (!events_.empty()) events_[slot_].record(stream);
}

std::span<const std::byte> PlanRing::current() const {
  if (slot_ < 0) return {};
  if (!pinned_.empty()) return {pinned_[slot_].data(), bytes_};
  const auto address = reinterpret_cast<std::uintptr_t>(plain_.data());
  return {plain_.data() + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment, bytes_};
}

WorkspaceState::WorkspaceState(std::shared_ptr<const AttentionState> attention, const Maxima& maxima)
    : owner(std::move(attention)),
      planner(owner->plan, maxima),
      ring(planner.layout().plan_bytes, owner->engine->on_gpu()) {
  const WorkspaceLayout& layout = planner.layout();
  if (owner->engine->on_gpu()) {
    append_ctas = append_grid(*owner, maxima);
    device = DeviceBuffer(layout.total_bytes);
    if (layout.max_transformed_keys > 0)
      transformed_usable =
          encode_transformed_map(transformed_map, owner->config, owner->gpu[static_cast<int>(Pipeline::append)].tile,
                                 base() + layout.transformed_keys, layout.max_transformed_keys);
    handover = EventHandle::create();
    // An unplanned workspace is an empty plan, and nothing has been published in its slots.
    fill8_async(device.data(), 0, sections_begin(planner.config()), nullptr);
    fill8_async(base() + layout.slots_begin, 0xff, layout.slots_end - layout.slots_begin, nullptr);
    synchronize(nullptr);
    return;
  }
  host.resize(layout.total_bytes + kWorkspaceAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(host.data());
  host_offset = (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  std::memset(base() + layout.slots_begin, 0xff, layout.slots_end - layout.slots_begin);
}

std::byte* WorkspaceState::base() {
  return device.data() ? static_cast<std::byte*>(device.data()) : host.data() + host_offset;
}

}  // namespace detail

namespace {

detail::WorkspaceState& checked(const std::shared_ptr<detail::WorkspaceState>& state) {
  if (!state) fail(ErrorKind::invalid_argument, "The Workspace is empty; make one with Attention::workspace().");
  return *state;
}

}  // namespace

std::size_t Workspace::bytes() const { return checked(state_).planner.layout().total_bytes; }
const WorkspaceLayout& Workspace::layout() const { return checked(state_).planner.layout(); }
const PlanSummary& Workspace::summary() const { return checked(state_).summary; }

std::span<const std::byte> Workspace::plan_bytes() const {
  const detail::WorkspaceState& ws = checked(state_);
  if (!ws.planned) return {};
  return ws.ring.current().first(ws.summary.plan_bytes);
}

}  // namespace heddle
