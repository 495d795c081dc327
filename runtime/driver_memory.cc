// Device and page-locked memory, and copies between them.
#include "runtime/cuda_table.h"

namespace heddle {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes), context_(current_context()) {
  if (bytes == 0) return;
  const RelaxedCaptureScope relaxed;
  CUdeviceptr pointer = 0;
  check(cuda().MemAlloc(&pointer, bytes), "cuMemAlloc");
  data_ = reinterpret_cast<void*>(pointer);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const ContextScope scope(context_);
  if (scope.active()) cuda_table->MemFree(address(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      context_(other.context_) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(context_, other.context_);
  return *this;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes), context_(current_context()) {
  if (bytes == 0) return;
  const RelaxedCaptureScope relaxed;
  // Portable: page-locked for every device of the process.
  check(cuda().MemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  const ContextScope scope(context_);
  if (scope.active()) cuda_table->MemFreeHost(data_);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      context_(other.context_) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(context_, other.context_);
  return *this;
}

void copy_to_device(void* device, const void* host, std::size_t bytes) {
  if (bytes != 0) check(cuda().MemcpyHtoD(address(device), host, bytes), "cuMemcpyHtoD");
}

void copy_to_host(void* host, const void* device, std::size_t bytes) {
  if (bytes != 0) check(cuda().MemcpyDtoH(host, address(device), bytes), "cuMemcpyDtoH");
}

void copy_to_device_async(void* device, const void* host, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cuda().MemcpyHtoDAsync(address(device), host, bytes, native(stream)), "cuMemcpyHtoDAsync");
}

void copy_to_host_async(void* host, const void* device, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cuda().MemcpyDtoHAsync(host, address(device), bytes, native(stream)), "cuMemcpyDtoHAsync");
}

void copy_on_device_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cuda().MemcpyDtoDAsync(address(to), address(from), bytes, native(stream)),
        "cuMemcpyDtoDAsync");
}

void fill8_async(void* device, std::uint8_t value, std::size_t count, Stream stream) {
  if (count == 0) return;
  check(cuda().MemsetD8Async(address(device), value, count, native(stream)), "cuMemsetD8Async");
}

void fill32_async(void* device, std::uint32_t value, std::size_t count, Stream stream) {
  if (count == 0) return;
  check(cuda().MemsetD32Async(address(device), value, count, native(stream)), "cuMemsetD32Async");
}

}  // namespace heddle
