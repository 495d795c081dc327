// The tiles of a kernel: what fits a device and, where several do, what measured fastest.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "variants/variant.h"

namespace heddle {

struct DeviceLimits {
  int num_sms = 0;
  int shared_per_block = 0;  // opt-in maximum, bytes
  int shared_per_sm = 0;     // bytes
  bool wgmma = false;        // has warpgroup products; clear it for the kernels of every architecture
};

// Of an architecture as NVRTC names it, for compiling without a device. Error where unknown.
DeviceLimits limits_of(const std::string& arch);
// The best target for a compute capability.
std::string arch_of(int major, int minor);

// Of an Attention's rows: of q and k, and of v and o.
struct HeadDims {
  int qk = 0, vo = 0;
};
HeadDims head_dims(const AttentionConfig& config);

// Whether a variant has code of its own that runs on tiles of q, k, v or logits, which takes registers: a hook but the
// initial state's and the output's, ranges that the batch gives, or no softmax.
bool has_tile_hooks(const Variant& variant);

// Tiles of a pipeline on a device, the fastest first; a later one needs fewer registers. Error where nothing fits.
std::vector<TileConfig> tile_candidates(Pipeline pipeline, const AttentionConfig& config, const DeviceLimits& limits,
                                        bool tile_hooks = true);

// Of the wgmma kernel: those of a tile's columns that lie together (of all its tiles alike) in shared memory, and keys of the boxes in
// which the copy engine moves a tile of K or V. A box has one page, and begins with a row that the
// kernel's first warp looks up. 0: rows are gathered.
int block_columns(const HeadDims& dims);
int box_rows(const AttentionConfig& config, const TileConfig& tile);
// Of the boxes in which it moves a query tile: tokens, each with the heads of one group. 0: rows are gathered.
int q_box_tokens(const AttentionConfig& config, const TileConfig& tile);

}  // namespace heddle
