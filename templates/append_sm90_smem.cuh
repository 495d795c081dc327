// What the producer and the consumers of append_sm90 share: tiles, barriers, records of streams.
#pragma once

#include "templates/append_output.cuh"
#include "templates/transform.cuh"
#include "templates/wgmma.cuh"

namespace heddle {

// Named barriers. Those of the consumers' turns follow, one a warpgroup.
inline constexpr int kProducerBarrier = 1;
inline constexpr int kConsumerBarrier = 2;
inline constexpr int kTurnBarrier = 3;

// One (work item, kv head): what the consumers need of it, written by the producer. It begins with words
// that the producer's lanes copy, one each.
struct AppendStream {
  MaskBounds mask;
  WorkItem item;
  KeyRange some_see;
  int full_begin, full_end;  // visited tiles that every row sees as a whole
  int kv_head;
  int key_row;  // transformed_key_row(), where units ask for it
  bool is_end;  // there is no such stream: the CTA's work is done
};

inline constexpr int kMaskWords = sizeof(MaskBounds) / 4;
inline constexpr int kRecordWords = kMaskWords + sizeof(WorkItem) / 4;
static_assert(kRecordWords <= kWarpSize, "a lane a word");

template <class Spec>
HEDDLE_DEVICE RowInfo row_of(const AppendStream& s, int row) {
  return row_info<Spec::kGroup>(s.mask, s.item, s.kv_head, row);
}

// Whether consumers keep their query rows in registers, beside scores, weights and O. Hooks on logits and given ranges
// need these for themselves (ptxas spills), as do tiles of 192 rows, and a loader that transforms rows has taken some.
// Tiles of 64 rows wait for memory, and longer so.
template <class Spec, class Hooks>
inline constexpr bool kHoldsQueries =
    Spec::kTile.rows == 128 && tile_columns(Spec::kHeadDim) <= 128 && tile_columns(Spec::kHeadDimVo) <= 128 &&
    !kChangesEveryLogit<Hooks> && !Hooks::has_logits_mask && !Spec::kRowsGiven && !Hooks::has_query_transform &&
    !Hooks::has_key_transform && !Hooks::has_value_transform;

template <class Spec>
struct AppendSm90Smem {
  using QTile = WgmmaTile<Spec::kTile.rows, Spec::kHeadDim, Spec::kBlockColumns>;
  using KTile = WgmmaTile<Spec::kTile.kv, Spec::kHeadDim, Spec::kBlockColumns>;
  using VTile = WgmmaTile<Spec::kTile.kv, Spec::kHeadDimVo, Spec::kBlockColumns>;
  static constexpr int kStageBytes = max_of(KTile::kBytes, VTile::kBytes);
  static constexpr int kStages = Spec::kTile.stages;
  static constexpr int kQBuffers = Spec::kTile.q_buffers;
  static_assert(QTile::kBytes % 1024 == 0 && kStageBytes % 1024 == 0, "tiles lie on the swizzle's grid");

  alignas(1024) uint8_t q[kQBuffers][QTile::kBytes];
  alignas(1024) uint8_t stage[kStages][kStageBytes];
  uint64_t q_full[kQBuffers], q_empty[kQBuffers];
  uint64_t full[kStages], empty[kStages];
  // The producer is at most kQBuffers streams ahead of the last one whose q is free, and a consumer
  // may still be writing that one's results.
  static constexpr int kRecords = 4;
  AppendStream records[kRecords];

  HEDDLE_DEVICE AppendStream& record(int stream) { return records[stream % kRecords]; }
};

}  // namespace heddle
