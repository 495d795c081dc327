// The ring of tiles as a consumer of append_sm90 goes through it: waits for filled stages, and gives them back.
#pragma once

#include "templates/append_sm90_smem.cuh"

namespace heddle {

template <class Spec>
class ConsumerStages {
  using Smem = AppendSm90Smem<Spec>;

 public:
  HEDDLE_DEVICE explicit ConsumerStages(Smem& smem) : smem_(smem) {}

  // Between the waits for tiles and their products: threads of the producer may have copied them.
  static HEDDLE_DEVICE void fence_tiles() { fence_async_proxy(); }

  // The next stage of the ring, filled.
  HEDDLE_DEVICE int acquire() {
    const int stage = ring_.stage;
    barrier_wait(&smem_.full[stage], ring_.parity);
    ring_.advance();
    return stage;
  }
  // Arrivals and waits stay on their side of a branch: without one an arrival, which nothing waits for, goes down past a
  // softmax, and the wait for products up in front of it. (No stage is below zero. The condition is the same in all
  // lanes and known early.)
  static HEDDLE_DEVICE void stay_here(int stage) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p trap;\n}" ::"r"(stage) : "memory");
  }
  // The next two stages of the ring, among exponentials: whether both are filled. Where they are, nothing stands between
  // one tile's weights and the next one's products but the turn.
  HEDDLE_DEVICE void look_ahead() {
    RingPlace<Smem::kStages> second = ring_;
    second.advance();
    next_are_full_ = barrier_test(&smem_.full[ring_.stage], ring_.parity) &
                     barrier_test(&smem_.full[second.stage], second.parity);
    fence_tiles();
  }
  // The next two stages: keys, and the values of the tile in front.
  struct Pair {
    int keys, values;
  };
  HEDDLE_DEVICE Pair acquire_pair() {
    const RingPlace<Smem::kStages> first = ring_;
    ring_.advance();
    const RingPlace<Smem::kStages> second = ring_;
    ring_.advance();
    if (!next_are_full_) {
      barrier_wait(&smem_.full[first.stage], first.parity);
      barrier_wait(&smem_.full[second.stage], second.parity);
      fence_tiles();
    }
    return {first.stage, second.stage};
  }
  HEDDLE_DEVICE void release(int stage) const { release(&smem_.empty[stage]); }
  static HEDDLE_DEVICE void release(const uint64_t* empty) {
    if (lane_index() == 0) barrier_arrive(empty);
  }

 private:
  Smem& smem_;
  RingPlace<Smem::kStages> ring_;
  bool next_are_full_ = false;
};

}  // namespace heddle
