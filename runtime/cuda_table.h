// Inside the room only: the driver's functions as they were found at run time.
//
// Each is asked for in the version whose signature the typedef in cudaTypedefs.h has (the version
// asked for picks the signature, so never CUDA_VERSION), without the per-thread stream forms.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "runtime/driver.h"

namespace heddle {

// X(name without "cu", version)
// clang-format off
#define HEDDLE_CUDA_REQUIRED(X)                                                               \
  X(Init, 2000) X(DriverGetVersion, 2020) X(GetErrorName, 6000) X(GetErrorString, 6000)       \
  X(DeviceGet, 2000) X(DeviceGetCount, 2000) X(DeviceGetName, 2000)                           \
  X(DeviceGetAttribute, 2000) X(DeviceTotalMem, 3020) X(DevicePrimaryCtxRetain, 7000)         \
  X(CtxSetCurrent, 4000) X(CtxGetCurrent, 4000) X(CtxPushCurrent, 4000)                       \
  X(CtxPopCurrent, 4000) X(CtxSynchronize, 2000) X(ModuleLoadData, 2000)                      \
  X(ModuleUnload, 2000) X(ModuleGetFunction, 2000) X(FuncSetAttribute, 9000)                  \
  X(FuncGetAttribute, 2020) X(OccupancyMaxActiveBlocksPerMultiprocessor, 6050)                \
  X(LaunchKernelEx, 11060) X(MemAlloc, 3020) X(MemFree, 3020) X(MemHostAlloc, 2020)           \
  X(MemFreeHost, 2000) X(MemcpyHtoD, 3020) X(MemcpyDtoH, 3020) X(MemcpyHtoDAsync, 3020)       \
  X(MemcpyDtoHAsync, 3020) X(MemcpyDtoDAsync, 3020) X(MemsetD8Async, 3020)                    \
  X(MemsetD32Async, 3020) X(StreamCreate, 2000) X(StreamDestroy, 4000)                        \
  X(StreamSynchronize, 2000) X(StreamWaitEvent, 3020) X(StreamBeginCapture, 10010)            \
  X(StreamEndCapture, 10000) X(StreamIsCapturing, 10000) X(EventCreate, 2000)                 \
  X(EventDestroy, 4000) X(EventRecord, 2000) X(EventQuery, 2000) X(EventSynchronize, 2000)    \
  X(EventElapsedTime, 2000) X(GraphGetNodes, 10000) X(GraphInstantiateWithFlags, 11040)       \
  X(GraphLaunch, 10000) X(GraphDestroy, 10000) X(GraphExecDestroy, 10000)                     \
  X(ThreadExchangeStreamCaptureMode, 10010)

// clang-format on

// Null where the driver is older than they are.
#define HEDDLE_CUDA_OPTIONAL(X) X(FuncLoad, 12040) X(TensorMapEncodeTiled, 12000)

struct CudaTable {
#define HEDDLE_MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
  HEDDLE_CUDA_REQUIRED(HEDDLE_MEMBER)
  HEDDLE_CUDA_OPTIONAL(HEDDLE_MEMBER)
#undef HEDDLE_MEMBER
};

// Null before the driver is initialised, and again in a forked child.
extern const CudaTable* cuda_table;

[[noreturn]] void fail_without_driver();
[[noreturn]] void fail_call(CUresult result, const char* call);

inline const CudaTable& cuda() {
  if (cuda_table == nullptr) [[unlikely]]
    fail_without_driver();
  return *cuda_table;
}

inline void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    fail_call(result, call);
}

inline CUdeviceptr address(const void* device) { return reinterpret_cast<CUdeviceptr>(device); }
inline CUstream native(Stream stream) { return static_cast<CUstream>(stream); }

void* current_context();  // throws where none is current

// For destructors, which may run in any thread and must not throw: `context` is current inside.
// active() is false where the driver is gone (a forked child); then there is nothing to free.
class ContextScope {
 public:
  explicit ContextScope(void* context)
      : active_(cuda_table != nullptr &&
                cuda_table->CtxPushCurrent(static_cast<CUcontext>(context)) == CUDA_SUCCESS) {}
  ~ContextScope() {
    CUcontext popped;
    if (active_) cuda_table->CtxPopCurrent(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  bool active() const { return active_; }

 private:
  bool active_;
};

// Allocating and loading are "unsafe" calls, which a capture in GLOBAL mode forbids to every
// thread of the process. They cannot disturb such a capture, so this thread opts out meanwhile.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope() { cuda().ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCaptureScope() { cuda_table->ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace heddle
