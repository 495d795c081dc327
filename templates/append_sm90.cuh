// Append on wgmma (sm_90a): any qo_len; FlashAttention-3's schedule over a work list.
//
// A producer warpgroup (append_sm90_load.cuh) feeds a ring of K and V tiles; each consumer
// warpgroup (append_sm90_consumer.cuh) owns 64 packed (token, head in group) rows. Within a consumer the
// softmax of a tile runs under the product P V of the tile before; between consumers, turns make the softmax
// of one run under the products of the other.
//
//   issue S(t) = Q K(t)^T, O += P(t + 1) V(t + 1) | wait S | maxima, weights of one row | wait O | weights of the other
//   row and between them O rescaled, P(t) packed, the next stages of the ring looked for
//
// The last keys come first, so that under a causal mask the boundary is met once, at the start. The same
// order leads from one stream into the next: its first scores stand beside the last P V of the one
// in front.
//
// shared memory:  Q q_buffers x rows x D | ring: stages x kv x D | barriers, records
//
// Ladder, TFLOP/s on H200s (2026-11-29; bf16, 32/8 heads, causal but `full`; bf16 matmul 700 to 790 there; hosts
// differ by 3 %). The first two columns and window are ragged, the others on pages of 16:
//   16k   full  1x16k  chunk  4x4k  16x1k  d64  d256  window
//   550   601   470           425   327    368  433   562    K and V by boxes of the first warp's lanes
//   589   618   475    483    442   355    372  501   607    + items a stream ahead, Q in boxes, last keys first,
//                                                            O rescaled under S, streams overlap; d64 192 x 96
//   579   619   571    628    541   406    363  505          + K released as soon as S stands (the assembler had
//                                                            moved that behind the softmax), boxes issued by all
//                                                            four warps, copies awaited by barriers alone
//   610   626   596    614    568   449    399  620   636    + the planner's price of an item twice what it was, and by
//                                                            its rows' bytes
//   633   650   628    626    638   466    418  603   669    + what the cycles below say, right behind all GPU tests;
//                                                            FlashAttention 3 in that run 654, 623, 658, 724, 654, 437, 472, 639
//   639   651   620    716    654   472    455  677   689    + streams dealt head by head (planner/deal.h), Q of 128-row tiles
//                                                            in registers, few boxes by one warp, d64 192 x 128 (2026-12-01;
//                                                            FlashAttention 3 651, 617, 641, 712, 664, 438, 474, 645)
// Energy of a launch, mJ (the driver's counter over a second of launches): the power limit makes it time. As it was / now /
//   FlashAttention 3: 16k ragged 2420 to 2460 / 2360 / 2370, full 4800 / 4720 / 5270, chunk 645 / 575 / 573, 4x4k 695 / 684 / 677,
//   16x1k 240 / 237 / 244, d64 530 / 470 / 454, d256 373 / 334. What it went to: keys read again from memory (chunk 1.37 GB
//   of 67 MB, FlashAttention 3 86 MB; 16k ragged 440 MB, now 202), and Q read from shared memory for every product (a fifth of
//   what is read there). Q in registers alone: full 637 to 646, d64 424 to 438, 16k 628 to 630; in 64-row tiles verify of 8
//   and 16 tokens 139.1 and 141.0 us where it was 138.2 and 140.2. One warp for few boxes: 16k ragged 0.5 %, d64 0.7 % of
//   a second's launches; the loader had been 13 % of all instructions.
//   D = 64, with Q in registers 192 x 96 442 (152 registers a consumer or 160), 192 x 112 440, 128 x 128 432; without
//   192 x 112 440, 192 x 128 449 to 452, which leaves the loader 32 registers. D = 128 with 192 x 80: 636 for 643 (16k), 458 for 470.
// Joins, of a stream in 8 pieces (64 requests over a prefix of 32k, stamps): 8 bytes a lane, each word a flag, 3 round trips a
//   row and slot 30 us; 16 bytes a lane, one trip 20; the lse as the flag of its row 15, 36 beside decode, where a trip is
//   2.5 us. So prefixes are cut into states for decode to join (planner/prefix_parts.h). What pieces gained by the last form,
//   with two rows' words under way at once: 32 tokens over 64k 269 to 360 TFLOP/s, 512 over 16k of D = 256 495 to 519,
//   four prompts of 700 341 to 353, one of 1k 376 to 382. But the loop of tiles was scheduled otherwise then, 1 % slower (16k
//   638 to 642 for 649 to 651, chunk 703 for 709); one row at a time, as it stands, was not measured on those rows.
// The same within 2 %: where a turn ends (after issuing P V, once S stands, before the last step of P V);
//   weights packed before or after the wait for O; streams one after the other in place of overlapped.
// Slower: a quarter or an eighth of exp2 as polynomials on the FMA pipe (16k 580 / 559, 4x4k 410 / 426);
//   pages of 16 as gathered K beside boxes of V (1x16k 559, 4x4k 525), all gathered (541, 505), boxes of whole
//   rows, 4 KB each (575, 526).
// soft_cap: 366 with four special functions a logit (exp2 twice, the reciprocals of tanh and of a division by the
//   cap), 345 with a polynomial for the reciprocal of tanh, on tiles of 128, 96 and 64 keys alike. Later, where 416 stood
//   (three special functions, 1052 instructions a tile; they are issued all the time, turns hardly wait): 435 with all
//   factors in one, 446 with a reciprocal for two logits, 451 for four (what stands now: 441 and 454 where plain had 624 and 632); not
//   taken: tanh.approx, 484, whose 2^-11 is more than the contract leaves; tanh by a polynomial for small logits alone, 459.
//   What soft_cap waits for (ncu: 3,880 cycles for a tile of both consumers; of a warp's time 26 % issuing, 21 % dispatch stalls
//   beside products, 18 % fixed waits, 14 % not selected): the special functions are busy 60 %, the tensor pipe 52 %. Of its
//   449, one run each: maxima of the first tile kept, which a bound allows where P is bf16 but rounds the largest weight, 463,
//   with tiles of 192 x 64 494 to 503; with P V issued among the exponentials too 467 and 494; nothing held at 2^30 475 and 510; maxima
//   of raw scores and all factors in one 467 (192 x 64: 470); tanh as a polynomial of degree 7 in small logits alone, factors
//   in one, 513, of degree 9 491; no turns 469 for 463, 508 for 513, 398 for 441.
//   Now (capped_logits.cuh): a polynomial in tiles of small logits, chosen by the warp. In turns with 453 (plain 648 to 669): of
//   degree 7 526 and 5 550 unasked; 505 of degree 7 asked of each logit's size, 530 of degree 5 asked of the largest alone, 540
//   to 548 with O rescaled only where a maximum rose; maxima of large logits from those of the dot products, as it stands, 524 to
//   532. Large logits (a cap of 3) 424 to 428 where 453 stood, 436 as it stands in another run, for the question
//   and the branch; one tail for both kinds of tile 389. Tiles of 192 x 80, whose loader has 32 registers, 556, large logits
//   453, but pages spill there; 192 x 64 542, 16x1k 393 for 376, 32 tokens of 32 requests 196 us for 141. Queries in
//   registers spill. Others, before and since: 4x4k 458 and 536, chunk 494 and 609, 16x1k 339 and 377, gemma2 over a window of
//   4k 433 and 563, d64 262 and 341, d256 563 and 615.
// Maxima as integers, three compared at once (VIMNMX3; the largest of floats that are not all negative): 16k 649 to 629, full
//   662 to 648, the others the same. Half the instructions, and under the power limit slower.
// O of more than 128 columns rescaled only where a maximum rose, asked a warp and half: D = 256 617 to 630, D = 192 664 to 674;
//   D = 128: 633 to 626 (16k), 647 to 642 (4x4k), 470 to 474 (16x1k). A row's sum in four parts: 613 where it had been 625.
//   A product with a column of ones beside P V, for sums of rounded weights, takes 13 cycles each (m64n8k16), 5 % of a tile's.
// Slower or the same, too: results through the query's tile and the copy engine (16x1k 402 where it had been 444,
//   4x4k the same); no fence where tiles came through the copy engine; 192 x 64 (16x1k 400); P V issued among the
//   exponentials (16k 572 where it had been 598), half of it (573); no turns, for two consumers. With one body for all
//   steps, a stream's first among them, ptxas runs products one by one (C7512).
// Faster and not taken: rescaling only where a maximum rises by 2^8 (FlashAttention-4: 16k 627, 4x4k 632, 16x1k 461,
//   d256 626 where it had been 607, 607, 445, 597): the largest weight is then no longer 1 but rounded, and 4 of
//   2,353 random problems went past what their dtype allows, by up to 9 %. Tiles of 160 keys, 16k ragged alone, 625
//   where 128 gave 612: pages would need a second row id a lane.
// Cycles of 16k ragged under ncu, millions (chunk in brackets), 5.40 (1.29) as it was; FlashAttention 3: 4.90 (1.19).
//   The same or slower: a row's limit (its base, 2^8, an eighth of what the lane has summed) in place of maxima, 5.55;
//   with it an eighth or a quarter of exp2 as polynomials 5.56, 5.80; both full barriers tested at once in front of a
//   turn 5.54; no turns 5.60; results by one rolled loop over a lane's two rows 5.47 (1.32).
//   5.41  O rescaled always, the wait for O between the two rows' weights; 5.34 with the next K looked for beside products
//   Uniform registers: in a kernel with a loop that lanes leave one by one (the polls of AppendOutput::join), or a branch
//         that single lanes may take (the trap on the sums that held the wait for O), the assembler keeps neither the
//         ring nor descriptors in them: 50 of a tile's 560 instructions, and branches wait for all lanes.
//   5.34  with them, but the wait for O in front of the softmax (14 % of a consumer's time); 5.31 both stages of the next
//         tile looked for beside products; 5.26 without fences, which pages need
//   5.34  the wait for O back between the rows, held by a branch that is the same in all lanes
//   5.09  both stages looked for among exponentials: those 27 instructions took 270 cycles beside products that were being
//         issued (chunk 1.34: the loader was the limit, its warps never waited for a stage)
//   5.05  (1.23) the loader: its stream in registers, one elected lane a warp for its boxes in place of a loop over lanes,
//         80 cycles a box
//   4.96  (1.19) the loader as it stood, where a warp's boxes are whole rows. In that run TFLOP/s were 632 (664) where the
//         loader before it had 629 (641); FlashAttention 3, with as many cycles, has 5 % more under the power limit.
//   4.90  streams dealt head by head
//   Slower: half of P V issued behind the maxima 5.81; the turn's end between S and P V 5.10 (1.32, before the loader).
// One consumer warpgroup, 64 x 128, where no request has more than 64 rows: tree verification of 8 tokens 141 us (read
//   4.68 TB/s) where 128 x 128 took 153 (4.56); without a tree 140 where it took 139 (4.58), so not measured as better.
//   With 64 x 64 in its place, pages of 16 (2026-11-30, read 4.68; with 64 x 128): 8 tokens 139 (141), 16 tokens 141 (142), trees
//   139 (145) and 140 (146), custom_mask 4 %, relative_bias 8 % faster; 8 tokens of 32 requests over 16k 531 (534), 0.87 of
//   read, ragged or on pages of 64 too; pages of 1, whose rows are gathered, 7 % slower and D = 64 up to 4 %, which keep 128.
//   The next tile's scores under way beside the second row's exponentials and the end of a tile, in registers of their own: 0.5
//   to 2 % slower in all of these rows. So it is not the consumer's waits for scores that hold it at 0.87.
// Bytes under way are part of what held it there: with five stages of 16 KB in place of eight 8 and 16 tokens of 32 requests
//   take 134 and 135 us for 139 and 140, 0.89 and 0.88 of read, ragged 0.90, trees 0.86 (engine/tiles.cc has more; 48 keys, six
//   stages of 12 KB, the same, but custom_mask 144 for 139). Tried beside that (2026-12-01, read 4.57):
//   SMs end between 108 and 136 us with equal shares. A fifth to a third of all work in a pool, cut into pieces of falling
//     length that whoever is done draws six tiles ahead: 142 to 147. Whole streams on 128 SMs, as the planner deals them,
//     have no cut; a piece stopped its consumer for 3.8 us to publish (a fence under load), a join for 5.
//   Words as flags, no fence, both rows and their lse in one round trip, words put back: the same, since cuts are few then;
//     16 tokens over 64k, seven slots a join, 85 for 81. (Both rows read at once behind lse flags, what stands: not measured
//     apart.)
//   Two CTAs an SM, 64 x 32, four stages: 131.5, ragged 129.7 (132), but trees 178: ptxas keeps to the launch's 128
//     registers there, whatever setmaxnreg says, and hooks spill. 64 x 48 spills anyway: 159.
//   One stage less for prefill (128 x 128, four): 16k 0.5 to 3 % faster, 16x1k 2 %, 4x4k 1 to 6 % slower; 32 rows over 64k
//     6 %, 128 over 128k 0.5 % faster.
// rope: 284 a row after the other, 332 four rows at once with one sine and cosine for them (different H200s; plain 591 on
//   both). Later, where 370 stood (plain 620; the loader's 1,500 instructions a tile are the limit): 104 registers for the
//   loader 369, with eight rows at once 346; places in the tile found once for eight rows (123 instructions for 148 of that
//   loop) 382 where plain had 622: what stands where keys are transformed as they are read. Transformed once a run ahead
//   of append (transformed_keys.cuh; with four heads at once 25 us under ncu, of 3,990; as it stands not measured apart): 552 to 562 where plain had 605 to 622; there 72 or 56 registers for
//   the loader, whose consumers then have plain's loop, 556 and 552; q one row a time in place of two, 534.
// No turns, a barrier of the warpgroup alone in their place (without one the loop spills and ptxas serialises products): 16k
//   631 to 636 for 641, 4x4k 593 to 612 for 651, d64 419 to 422 for 425, soft_cap 446 for 453, alibi 539 for 537,
//   relative_bias 356 for 376. The next stages looked for late behind hooks too: alibi 545 for 537, soft_cap 443 for 453,
//   relative_bias 352 for 376.
// alibi: 537 with three instructions a logit, 578 with one (affine_logits.cuh; plain 616). relative_bias: 376 with 1,244
//   instructions a tile, 413 with 931 (TensorRow), 503 (plain 629) with 573 in far tiles (far_tiles.cuh; near ones
//   about 1,100, masked ones 2,000).
// The same or slower, in one run: one loop for masked and whole tiles where hooks change every logit (soft_cap 391 for 416,
//   document 440 for 464; compiles a fifth faster); d64 (418) with tiles 192 x 112 (417), 128 x 128 (415), x 160 (381),
//   x 192 (383).
#pragma once

#include "templates/append_sm90_consumer.cuh"
#include "templates/append_sm90_load.cuh"

namespace heddle {

template <class Spec, class Hooks>
class AppendSm90 {
  using Smem = AppendSm90Smem<Spec>;
  static constexpr int kGroups = Spec::kTile.rows / 64;
  static constexpr int kConsumers = kGroups * kWarpgroupSize;
  // Registers a thread once the roles are known; together no more than the CTA starts with. One consumer warpgroup
  // has enough as they are.
  static constexpr bool kTransforms =
      Hooks::has_query_transform || Hooks::has_key_transform || Hooks::has_value_transform;
  static constexpr bool kWideLoader = kGroups == 2 && kTransforms;
  static constexpr bool kNarrowLoader = kGroups == 2 && kHoldsQueries<Spec, Hooks>;
  static constexpr bool kNarrowestLoader = kGroups == 3 && Spec::kTile.kv > 96;
  static constexpr int kLoaderRegisters = kWideLoader ? 88 : kNarrowestLoader ? 32 : kNarrowLoader ? 40 : 56;
  static constexpr int kConsumerRegisters =
      kGroups == 3 ? (kNarrowestLoader ? 160 : 152) : kWideLoader ? 208 : kNarrowLoader ? 232 : 224;
  static_assert(kGroups >= 1 && kGroups <= 3, "one to three consumer warpgroups");
  static_assert(Spec::kTile.warps == (kGroups + 1) * kWarpgroupWarps, "and one producer");
  static_assert(sizeof(Smem) <= Spec::kTile.smem_bytes, "the host launches with too little shared memory");

 public:
  HEDDLE_DEVICE AppendSm90(const AttentionParams& params, const Hooks& hooks, const TensorMaps& maps, Smem& smem)
      : p_(params), hooks_(hooks), maps_(maps), smem_(smem) {}

  HEDDLE_DEVICE void run() {
    const bool has_work = p_.cta_begin[blockIdx.x] < p_.cta_begin[blockIdx.x + 1];
    if (threadIdx.x == 0) init_barriers();
    if (threadIdx.x == kConsumers) {
      prefetch_map(maps_.q);
      prefetch_map(maps_.k);
      prefetch_map(maps_.v);
    }
    take_turn_in_front<Spec>(p_);
    if (!has_work) return;
    __syncthreads();
    // By the warp: behind a branch of single lanes the assembler has no uniform registers (the ladder).
    if (uniform(threadIdx.x / kWarpgroupSize) >= kGroups) {
      if constexpr (kGroups > 1) give_registers_back<kLoaderRegisters>();
      AppendSm90Loader<Spec, Hooks>(p_, hooks_, maps_, smem_).run();
    } else {
      if constexpr (kGroups > 1) take_registers<kConsumerRegisters>();
      AppendSm90Consumer<Spec, Hooks>(p_, hooks_, smem_).run();
    }
  }

 private:
  HEDDLE_DEVICE void init_barriers() {
    for (int i = 0; i < Smem::kQBuffers; ++i) {
      barrier_init(&smem_.q_full[i], kWarpgroupSize + kWarpSize);  // the rows, and the record
      barrier_init(&smem_.q_empty[i], kGroups * kWarpgroupWarps);
    }
    for (int i = 0; i < Smem::kStages; ++i) {
      barrier_init(&smem_.full[i], kWarpgroupSize);
      barrier_init(&smem_.empty[i], kGroups * kWarpgroupWarps);
    }
    barrier_init_fence();
  }

  const AttentionParams& p_;
  const Hooks& hooks_;
  const TensorMaps& maps_;
  Smem& smem_;
};

}  // namespace heddle
