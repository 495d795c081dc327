// What a hook sees as tensors.NAME: tensors.slopes[qo_head], tensors.bias(q_row, kv_pos).
// f16 and bf16 are read as f32, u8 as int. Strides count elements and come from the run; the last of
// several axes is contiguous (the engine checks it), so that neighbouring keys are an immediate apart.
// Where the last index is not kv_pos and a constant (a distance that is clamped, say) they are not, and an address is
// one instruction in place of five with tensors.bias.row(qo_head)[index]; row(qo_head).from(8)[index] is element 8 + index.
#pragma once

#include "templates/abi.h"
#include "templates/hook_context.h"

namespace heddle {

struct Bf16Bits {
  uint16_t bits;
};
struct F16Bits {
  uint16_t bits;
};

HEDDLE_HOOK float float_of_bits(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } both;
  both.u = bits;
  return both.f;
}

HEDDLE_HOOK float read_element(const float& x) { return x; }
HEDDLE_HOOK int read_element(const int32_t& x) { return x; }
HEDDLE_HOOK int read_element(const uint8_t& x) { return x; }
HEDDLE_HOOK uint32_t read_element(const uint32_t& x) { return x; }
HEDDLE_HOOK float read_element(const Bf16Bits& x) { return float_of_bits(uint32_t(x.bits) << 16); }
// Exact for every f16, subnormals, infinities and NaN included.
HEDDLE_HOOK float read_element(const F16Bits& x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16;
  const uint32_t rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  const float magnitude = float_of_bits(rest << 13) * float_of_bits(0x77800000u);  // * 2^112
  return sign ? -magnitude : magnitude;
}

// A row of a tensor, the index of its last axis an int.
template <class T>
struct TensorRow {
  const T* data;

  HEDDLE_HOOK explicit TensorRow(const T* row) : data(row) {
#if defined(__CUDA_ARCH__)
    asm("" : "+l"(data));  // whole: else its 64 bits are added up anew for each key
    __builtin_assume(__isGlobal(data));
#endif
  }
  // With element `first` as its 0.
  HEDDLE_HOOK TensorRow from(int first) const { return TensorRow(data + first); }
  HEDDLE_HOOK auto operator[](int i) const { return read_element(data[i]); }
};

template <class T, int kRank>
struct TensorView {
  const T* data;
  int64_t strides[kMaxTensorRank];

  HEDDLE_HOOK auto operator[](int64_t i) const { return (*this)(i); }
  HEDDLE_HOOK auto operator()(int64_t i) const {
    has_axes<1>();
    return read_element(data[i * strides[0]]);
  }
  HEDDLE_HOOK auto operator()(int64_t i, int64_t j) const {
    has_axes<2>();
    return read_element(data[i * strides[0] + j]);
  }
  HEDDLE_HOOK auto operator()(int64_t i, int64_t j, int64_t k) const {
    has_axes<3>();
    return read_element(data[i * strides[0] + j * strides[1] + k]);
  }
  HEDDLE_HOOK auto operator()(int64_t i, int64_t j, int64_t k, int64_t l) const {
    has_axes<4>();
    return read_element(data[i * strides[0] + j * strides[1] + k * strides[2] + l]);
  }

  HEDDLE_HOOK TensorRow<T> row(int64_t i) const {
    has_axes<2>();
    return TensorRow<T>(data + i * strides[0]);
  }
  HEDDLE_HOOK TensorRow<T> row(int64_t i, int64_t j) const {
    has_axes<3>();
    return TensorRow<T>(data + (i * strides[0] + j * strides[1]));
  }

 private:
  template <int kIndices>
  static HEDDLE_HOOK void has_axes() {
    static_assert(kIndices == kRank, "a tensor takes one index for each axis of its shape");
  }
};

// Packed arguments (VariantArgs, or as many of its bytes as a variant has): fields at their byte
// offsets.
template <class T, int kBytes>
HEDDLE_HOOK T read_arg(const ArgBytes<kBytes>& args, int offset) {
  return *reinterpret_cast<const T*>(args.bytes + offset);
}

}  // namespace heddle
