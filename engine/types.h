// Words that every host room shares: element types, KV layouts, tensors, devices.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "templates/abi.h"

namespace heddle {

inline constexpr std::string_view kVersion = "0.1.0";

constexpr int bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::u32: return "u32";
  }
  return "?";
}

constexpr std::string_view name_of(Pipeline pipeline) { return pipeline == Pipeline::decode ? "decode" : "append"; }

// Order of the two middle axes of a KV page: NHD = [page_size, heads, dim], HND = [heads, page_size, dim].
enum class KvLayout { NHD, HND };

// A device array that somebody else owns. Strides count elements; the last axis must be contiguous
// wherever a path reads rows.
struct Tensor {
  static constexpr int kMaxRank = 4;
  void* data = nullptr;
  DType dtype = DType::bf16;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
};

// A text that the build puts into the binary (tools/embed.cmake writes the tables; the room that
// uses one declares its function in namespace heddle::embedded).
struct EmbeddedFile {
  std::string_view path;  // relative to the repository: "templates/decode.cuh"
  std::string_view text;
};

// A CUstream as an opaque pointer, so that no public header needs cuda.h. Null is the legacy
// default stream; the CPU device ignores it (everything there is synchronous).
using Stream = void*;

}  // namespace heddle
