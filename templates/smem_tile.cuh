// A tile of 16-bit rows in shared memory, as 16-byte chunks permuted so that ldmatrix (8 rows of
// one chunk column) touches all 32 banks, for any number of columns that is a multiple of 16:
//
//   chunks a row C   chunk c of row r lies at     rows that share a bank group without it
//   C % 8 == 0       c ^ (r & 7)                  8   (columns 64, 128, 192, 256)
//   C % 4 == 0       c ^ ((r >> 1) & 3)           4   (96, 160, 224)
//   otherwise        c ^ ((r >> 2) & 1)           2   (48, 80, 112)
//
// Rows of a head_dim that is no multiple of 16 end in a chunk of zeros.
#pragma once

#include "templates/prelude.cuh"

namespace heddle {

template <int kHeadDim_>
struct SmemTile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kColumns = tile_columns(kHeadDim);
  static constexpr int kChunks = kColumns / kChunkElements;
  static constexpr int kRowBytes = kColumns * 2;

  // Whether the row reaches into a chunk; if not, it stays zero.
  static HEDDLE_DEVICE constexpr bool has_chunk(int chunk) {
    return kHeadDim == kColumns || chunk < kHeadDim / kChunkElements;
  }

  static HEDDLE_DEVICE int swizzle(int row, int chunk) {
    if constexpr (kChunks % 8 == 0) return chunk ^ (row & 7);
    if constexpr (kChunks % 4 == 0) return chunk ^ ((row >> 1) & 3);
    return chunk ^ ((row >> 2) & 1);
  }
  static HEDDLE_DEVICE int chunk_offset(int row, int chunk) {
    return row * kRowBytes + swizzle(row, chunk) * kChunkBytes;
  }
  static HEDDLE_DEVICE int element_offset(int row, int column) {
    return chunk_offset(row, column / kChunkElements) + column % kChunkElements * 2;
  }

  // Where one lane of an ldmatrix points: its row's address and its swizzle key, kept apart so that
  // an address is one LOP3 and one add. The key of a row repeats every 8 rows, so other rows are an
  // immediate away. The key is opaque to the compiler: hoisting the addresses of every chunk out
  // of the tile loop would cost 24 registers.
  struct Reader {
    uint32_t row;
    uint32_t key;

    HEDDLE_DEVICE Reader(uint32_t tile, int lane_row, int odd_chunk) {
      asm volatile("" : "+r"(lane_row));
      row = tile + lane_row * kRowBytes;
      key = (swizzle(lane_row, 0) ^ odd_chunk) * kChunkBytes;
    }
    // Chunks 2 * pair and 2 * pair + 1 of 16 rows from `first_row` (a multiple of 8) on.
    HEDDLE_DEVICE uint32_t at(int first_row, int pair) const {
      return row + first_row * kRowBytes + ((pair * 2 * kChunkBytes) ^ key);
    }
  };

  // A operand, 16 rows x 16 columns: matrices (rows 0-7, rows 8-15) x (left, right).
  static HEDDLE_DEVICE Reader a_reader(uint32_t tile) {
    return Reader(tile, lane_index() & 15, lane_index() >> 4);
  }
  // B operand of Q K^T from rows of keys: two n8 blocks of keys x 16 columns.
  static HEDDLE_DEVICE Reader b_reader(uint32_t tile) {
    return Reader(tile, (lane_index() >> 4) * 8 + (lane_index() & 7), (lane_index() >> 3) & 1);
  }
  // B operand of P V from rows of keys, transposed: 16 keys x two n8 blocks of columns.
  static HEDDLE_DEVICE Reader b_trans_reader(uint32_t tile) { return a_reader(tile); }
};

}  // namespace heddle
