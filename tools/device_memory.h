// Bytes on the engine's device: GPU memory, or plain host memory on the CPU device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/engine.h"

namespace heddle::tools {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Engine& engine, std::size_t bytes);

  void* data() const;
  std::size_t bytes() const { return bytes_; }

  // These wait until the bytes have arrived.
  void write(std::size_t offset, std::span<const std::byte> source);
  void read(std::size_t offset, std::span<std::byte> target) const;
  void copy_from(const DeviceMemory& source, std::size_t source_offset, std::size_t offset,
                 std::size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::size_t bytes_ = 0;
};

// A contiguous tensor over memory that somebody else owns.
Tensor tensor_of(void* data, DType dtype, std::initializer_list<std::int64_t> shape);

}  // namespace heddle::tools
