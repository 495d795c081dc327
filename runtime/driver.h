// The CUDA driver behind small move-only owners, without cuda.h.
//
// libcuda.so.1 is opened on the first Driver::get(), never linked. Every call that fails throws
// Error(driver) with the call's name and CUDA's own name and words; destructors swallow errors.
// Handles are opaque pointers (CUcontext, CUfunction, CUstream...), device memory is a plain void*
// so that kernel arguments and Tensors need no cast.
//
// Owners work in the context that is current when they are made: call Device::make_current() first
// in each thread. They remember it, so they may be destroyed in any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error.h"
#include "engine/types.h"

namespace heddle {

class Driver {
 public:
  // The initialised driver, or null where there is none to use: no libcuda, the toolkit's stub, no
  // device, or a process that was forked from one which had used CUDA. why_not() is then a
  // sentence.
  static const Driver* get();
  static std::string why_not();

  int version() const { return version_; }  // of CUDA, 13000 for 13.0
  int num_devices() const { return num_devices_; }

 private:
  friend struct DriverLoader;
  int version_ = 0;
  int num_devices_ = 0;
};

// One device's primary context, which this process keeps until it ends: other libraries share it,
// and owners that outlive the engine can still free what they hold.
class Device {
 public:
  // Throws Error(unsupported) where there is no driver or no such device.
  static Device open(int ordinal = 0);

  void make_current() const;
  void synchronize() const;  // makes it current first

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  int num_sms() const { return num_sms_; }
  int major() const { return major_; }
  int minor() const { return minor_; }
  int max_shared_per_block() const { return max_shared_per_block_; }  // opt-in limit, bytes
  int shared_per_sm() const { return shared_per_sm_; }                // bytes
  int registers_per_sm() const { return registers_per_sm_; }
  int max_threads_per_sm() const { return max_threads_per_sm_; }
  int l2_bytes() const { return l2_bytes_; }
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  Device() = default;
  void* context_ = nullptr;
  std::string name_;
  std::size_t total_bytes_ = 0;
  int ordinal_ = 0, num_sms_ = 0, major_ = 0, minor_ = 0;
  int max_shared_per_block_ = 0, shared_per_sm_ = 0, registers_per_sm_ = 0;
  int max_threads_per_sm_ = 0, l2_bytes_ = 0;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A 16-bit tensor as Hopper's copy engine (TMA) moves boxes of it. Axis 0 is contiguous.
struct TensorMapShape {
  static constexpr int kMaxRank = 4;
  const void* base = nullptr;
  bool bf16 = true;  // else f16
  int rank = 0;
  std::array<std::uint64_t, kMaxRank> extent{};
  std::array<std::uint64_t, kMaxRank> stride_bytes{};  // [0] is not read
  std::array<std::uint32_t, kMaxRank> box{};
  int swizzle_bytes = 128;  // 128, 64 or 32: a box's row
};

// Writes the 128 bytes of a CUtensorMap. False where the driver has none, or the engine cannot take
// these extents and strides.
bool encode_tensor_map(void* map, const TensorMapShape& shape);

// A function of a Module that is still loaded; a plain handle, free to copy.
struct Kernel {
  void* function = nullptr;

  // `programmatic`: may start before the kernel in front of it on the stream has ended (PDL); the
  // kernel then waits itself, with griddepcontrol.wait.
  void launch(Dim3 grid, Dim3 block, int smem_bytes, Stream stream, void** args,
              bool programmatic = false) const;

  void set_max_dynamic_smem(int bytes) const;
  int max_active_blocks_per_sm(int threads, int smem_bytes) const;
  int registers() const;
  int local_bytes() const;   // stack and spills, a thread
  int shared_bytes() const;  // static
  int max_threads_per_block() const;

  // Loads the code now. Drivers load lazily otherwise, and a first launch inside a capture may
  // then invalidate the capture.
  void load() const;

  explicit operator bool() const { return function != nullptr; }
};

// An image loaded into the current context.
class Module {
 public:
  Module() = default;
  // Throws Error(driver); refused() tells whether the image itself was at fault.
  explicit Module(std::string_view image);
  ~Module();
  Module(Module&& other) noexcept;
  Module& operator=(Module&& other) noexcept;

  Kernel kernel(const std::string& entry) const;  // loaded; throws where there is no such entry

  // Did this error say that the image is no good here (damaged, another architecture)? Then the
  // cache should forget() it and compile once more.
  static bool refused(const Error& error);

  explicit operator bool() const { return module_ != nullptr; }

 private:
  void* module_ = nullptr;
  void* context_ = nullptr;
};

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);  // 0 bytes: no memory, data() is null
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* context_ = nullptr;
};

// Page-locked host memory, which asynchronous copies need.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* context_ = nullptr;
};

// The synchronous copies wait for the legacy default stream and for themselves, not for streams
// made non-blocking. 0 bytes is no call at all.
void copy_to_device(void* device, const void* host, std::size_t bytes);
void copy_to_host(void* host, const void* device, std::size_t bytes);
void copy_to_device_async(void* device, const void* host, std::size_t bytes, Stream stream);
void copy_to_host_async(void* host, const void* device, std::size_t bytes, Stream stream);
void copy_on_device_async(void* to, const void* from, std::size_t bytes, Stream stream);
void fill8_async(void* device, std::uint8_t value, std::size_t count, Stream stream);
void fill32_async(void* device, std::uint32_t value, std::size_t count, Stream stream);

// A non-blocking stream: it does not wait for the legacy default stream.
class StreamHandle {
 public:
  StreamHandle() = default;
  static StreamHandle create();
  ~StreamHandle();
  StreamHandle(StreamHandle&& other) noexcept;
  StreamHandle& operator=(StreamHandle&& other) noexcept;

  Stream get() const { return stream_; }
  void synchronize() const;

 private:
  Stream stream_ = nullptr;
  void* context_ = nullptr;
};

class EventHandle {
 public:
  EventHandle() = default;
  static EventHandle create(bool timed = false);
  ~EventHandle();
  EventHandle(EventHandle&& other) noexcept;
  EventHandle& operator=(EventHandle&& other) noexcept;

  void record(Stream stream) const;
  void synchronize() const;
  bool reached() const;  // has everything before the last record() finished?
  void* get() const { return event_; }
  explicit operator bool() const { return event_ != nullptr; }

 private:
  void* event_ = nullptr;
  void* context_ = nullptr;
};

float elapsed_ms(const EventHandle& begin, const EventHandle& end);  // both timed and reached

void synchronize(Stream stream);
void stream_wait_event(Stream stream, const EventHandle& event);
bool is_capturing(Stream stream);

// Which other calls a capture forbids: thread = unsafe calls of this thread, relaxed = none.
enum class CaptureMode { thread, relaxed };

// A captured and instantiated graph. It holds no reference to the modules and buffers that its
// kernels use: those must outlive it.
class Graph {
 public:
  Graph() = default;
  static void begin_capture(Stream stream, CaptureMode mode = CaptureMode::relaxed);
  static Graph end_capture(Stream stream);  // throws where the capture was invalidated
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  void launch(Stream stream) const;
  std::size_t num_nodes() const { return num_nodes_; }

  explicit operator bool() const { return exec_ != nullptr; }

 private:
  void* graph_ = nullptr;
  void* exec_ = nullptr;
  std::size_t num_nodes_ = 0;
};

}  // namespace heddle
