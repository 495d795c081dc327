#include "tools/device_memory.h"

#include <cstring>
#include <new>

#include "runtime/driver.h"

namespace heddle::tools {

struct DeviceMemory::State {
  DeviceBuffer device;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> host{nullptr, nullptr};
};

DeviceMemory::DeviceMemory(const Engine& engine, std::size_t bytes)
    : state_(std::make_shared<State>()), bytes_(bytes) {
  if (engine.device().kind == DeviceKind::cuda) {
    state_->device = DeviceBuffer(bytes);
    return;
  }
  constexpr std::align_val_t kAlignment{256};  // as the driver gives
  state_->host = {static_cast<std::byte*>(::operator new[](bytes, kAlignment)),
                  [](std::byte* data) { ::operator delete[](data, kAlignment); }};
}

void* DeviceMemory::data() const {
  if (!state_) return nullptr;
  return state_->host ? state_->host.get() : state_->device.data();
}

void DeviceMemory::write(std::size_t offset, std::span<const std::byte> source) {
  if (source.empty()) return;
  std::byte* target = static_cast<std::byte*>(data()) + offset;
  if (state_->host) {
    std::memcpy(target, source.data(), source.size());
  } else {
    copy_to_device(target, source.data(), source.size());
  }
}

void DeviceMemory::read(std::size_t offset, std::span<std::byte> target) const {
  if (target.empty()) return;
  const std::byte* source = static_cast<const std::byte*>(data()) + offset;
  if (state_->host) {
    std::memcpy(target.data(), source, target.size());
  } else {
    copy_to_host(target.data(), source, target.size());
  }
}

void DeviceMemory::copy_from(const DeviceMemory& source, std::size_t source_offset,
                             std::size_t offset, std::size_t bytes) {
  const std::byte* from = static_cast<const std::byte*>(source.data()) + source_offset;
  std::byte* to = static_cast<std::byte*>(data()) + offset;
  if (state_->host) {
    std::memcpy(to, from, bytes);
  } else {
    copy_on_device_async(to, from, bytes, nullptr);
    synchronize(nullptr);
  }
}

Tensor tensor_of(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor{.data = data, .dtype = dtype, .rank = int(shape.size())};
  std::copy(shape.begin(), shape.end(), tensor.shape.begin());
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

}  // namespace heddle::tools
