// A libcuda.so.1 that plays a driver on the CPU, for the paths that no machine without a GPU has.
//
// MOCK_CUDA chooses what it plays: "stub" (the toolkit's), "no_device", "old" (no
// cuLaunchKernelEx), "no_func_load", "maps" (tensor maps are made), "short" (launches without their
// figures), "quiet" (launches not noted at all), or "NAME=CODE": the function NAME fails with the
// CUresult CODE; "NAME=CODE once": its first call does. Each call is noted, and mock_calls() gives
// the notes. Device memory is host memory, but that of a block of 1 GiB or more, which has
// addresses alone: what is copied there is dropped. It has no cuda.h: the signatures are the
// driver's, with every handle a pointer.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidContext = 201;  // what the driver says to a thread without a current context
std::string calls;
void* current = nullptr;  // context
int capture_mode = 0;     // GLOBAL
void* captured = nullptr;  // stream

std::string role() {
  const char* value = std::getenv("MOCK_CUDA");
  return value != nullptr ? value : "";
}

int note(const std::string& name, const std::string& detail = {}) {
  calls += name + (detail.empty() ? "" : "(" + detail + ")") + " ";
  const std::string wish = role();
  if (wish.compare(0, name.size() + 1, name + "=") != 0) return 0;
  if (wish.find(" once") != wish.npos) unsetenv("MOCK_CUDA");
  return std::atoi(wish.c_str() + name.size() + 1);
}

void* handle(const std::string& name) {
  static std::map<std::string, char> handles;
  return &handles[name];
}

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

int init(unsigned) { return role() == "no_device" ? 100 : note("cuInit"); }
int driver_version(int* version) { return *version = 12080, 0; }
int error_name(int code, const char** name) {
  switch (code) {
    case 2:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case 200:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      return 0;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return 0;
    case 901:
      *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
      return 0;
    default:
      return 1;
  }
}
int error_string(int code, const char** words) {
  return *words = code == 2 ? "out of memory" : "some words", 0;
}
int device_get(int* device, int ordinal) { return *device = ordinal, 0; }
int device_count(int* count) { return *count = 1, 0; }
int device_name(char* name, int size, int) { return std::snprintf(name, size, "Mock H200"), 0; }
int device_attribute(int* value, int attribute, int) {
  const std::map<int, int> values = {{16, 132},    {75, 9},        {76, 0},     {97, 232448},
                                     {81, 233472}, {38, 62914560}, {82, 65536}, {39, 2048}};
  const auto at = values.find(attribute);
  return at == values.end() ? 1 : (*value = at->second, 0);
}
int device_memory(std::size_t* bytes, int) { return *bytes = std::size_t{141} << 30, 0; }
int retain(void** context, int) {
  return *context = handle("context"), note("cuDevicePrimaryCtxRetain");
}
int set_current(void* context) { return current = context, 0; }
int get_current(void** context) { return *context = current, 0; }
std::vector<void*> below;  // the current context
int push(void* context) {
  return below.push_back(current), current = context, note("cuCtxPushCurrent");
}
int pop(void** context) {
  *context = current, current = below.empty() ? nullptr : below.back();
  if (!below.empty()) below.pop_back();
  return note("cuCtxPopCurrent");
}
int synchronize() { return note("cuCtxSynchronize"); }
int module_load(void** module, const void*) {
  return *module = handle("module"), note("cuModuleLoadData", std::to_string(capture_mode));
}
int module_unload(void*) { return note("cuModuleUnload"); }
int module_function(void** function, void*, const char* name) {
  return *function = handle(name),
         std::strcmp(name, "absent") == 0 ? 500 : note("cuModuleGetFunction", name);
}
int func_set(void*, int attribute, int value) {
  return note("cuFuncSetAttribute", std::to_string(attribute) + "," + std::to_string(value));
}
int func_get(int* value, int attribute, void*) { return *value = 100 + attribute, 0; }
int func_load(void*) { return note("cuFuncLoad", std::to_string(capture_mode)); }
// What was asked for, as a list: data type, rank, extents; strides; box; swizzle.
int tensor_map(void*, int type, std::uint32_t rank, void*, const std::uint64_t* extent,
               const std::uint64_t* stride, const std::uint32_t* box, const std::uint32_t* step,
               int, int swizzle, int, int) {
  std::string text = std::to_string(type) + "," + std::to_string(rank);
  for (std::uint32_t i = 0; i < rank; ++i) text += "," + std::to_string(extent[i]);
  for (std::uint32_t i = 0; i + 1 < rank; ++i) text += (i ? "," : ";") + std::to_string(stride[i]);
  for (std::uint32_t i = 0; i < rank; ++i)
    text += (i ? "," : ";") + std::to_string(box[i] * step[i]);
  return note("cuTensorMapEncodeTiled", text + ";" + std::to_string(swizzle));
}
int occupancy(int* blocks, void*, int threads, std::size_t bytes) {
  return *blocks = bytes > 100'000 ? 1 : 2048 / threads, 0;
}
int launch(const LaunchConfig* config, void*, void** args, void**) {
  char text[128];
  std::snprintf(text, sizeof text, "%u %u %u,%u,%u,%u attributes,%d", config->grid[0],
                config->grid[1], config->grid[2], config->block[0], config->shared_bytes,
                config->num_attributes, *static_cast<int*>(args[0]));
  const int code = note("cuLaunchKernelEx", role() == "short" ? "" : text);
  return current != nullptr ? code : kInvalidContext;
}
int quiet_launch(const LaunchConfig*, void*, void**, void**) { return 0; }
constexpr std::size_t kHuge = std::size_t{1} << 30;
std::map<const std::byte*, std::size_t> huge;
bool is_huge(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto after = huge.upper_bound(at);
  return after != huge.begin() && at < (--after)->first + after->second;
}
void* reserve(std::size_t bytes) {
  void* pointer =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  huge[static_cast<std::byte*>(pointer)] = bytes;
  return pointer;
}
int mem_alloc(void** pointer, std::size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  return *pointer = bytes < kHuge ? std::malloc(bytes) : reserve(bytes), note("cuMemAlloc");
}
int mem_free(void* pointer) {
  if (!is_huge(pointer)) return std::free(pointer), note("cuMemFree");
  auto* begin = static_cast<std::byte*>(pointer);
  munmap(begin, huge[begin]);
  return huge.erase(begin), note("cuMemFree");
}
int host_alloc(void** pointer, std::size_t bytes, unsigned) {
  return *pointer = std::malloc(bytes), note("cuMemHostAlloc");
}
int host_free(void* pointer) { return std::free(pointer), note("cuMemFreeHost"); }
int copy(void* to, const void* from, std::size_t bytes) {
  if (!is_huge(to) && !is_huge(from)) std::memcpy(to, from, bytes);
  return note("copy");
}
int copy_async(void* to, const void* from, std::size_t bytes, void*) {
  if (current == nullptr) return kInvalidContext;
  if (!is_huge(to) && !is_huge(from)) std::memcpy(to, from, bytes);
  return note("copy_async");
}
int fill8(void* to, unsigned char value, std::size_t count, void*) {
  if (!is_huge(to)) std::memset(to, value, count);
  return 0;
}
int fill32(std::uint32_t* to, unsigned value, std::size_t count, void*) {
  for (std::size_t i = 0; i < count; ++i) to[i] = value;
  return 0;
}
// Streams have numbers, in the order in which they are made; 0 is the legacy one.
std::vector<void*> streams = {nullptr};
std::string number_of(void* stream) {
  return std::to_string(std::find(streams.begin(), streams.end(), stream) - streams.begin());
}
int stream_create(void** stream, unsigned flags) {
  streams.push_back(*stream = handle("stream " + std::to_string(streams.size())));
  return note("cuStreamCreate", std::to_string(flags));
}
int stream_destroy(void*) { return note("cuStreamDestroy"); }
int stream_synchronize(void*) { return note("cuStreamSynchronize"); }
int stream_wait(void* stream, void*, unsigned) {
  return note("cuStreamWaitEvent", number_of(stream));
}
int begin_capture(void* stream, int mode) {
  return captured = stream, note("cuStreamBeginCapture", std::to_string(mode));
}
int end_capture(void*, void** graph) {
  return captured = nullptr, *graph = handle("graph"), note("cuStreamEndCapture");
}
int capturing(void* stream, int* status) {
  return *status = stream != nullptr && stream == captured, 0;
}
int event_create(void** event, unsigned flags) {
  return *event = handle("event"), note("cuEventCreate", std::to_string(flags));
}
int event_destroy(void*) { return note("cuEventDestroy"); }
int event_record(void*, void* stream) { return note("cuEventRecord", number_of(stream)); }
int event_query(void*) { return note("cuEventQuery"); }
int event_synchronize(void*) { return note("cuEventSynchronize"); }
int event_elapsed(float* ms, void*, void*) { return *ms = 1.5f, 0; }
int graph_nodes(void*, void**, std::size_t* count) { return *count = 3, 0; }
int graph_instantiate(void** exec, void*, unsigned long long) {
  return *exec = handle("exec"), note("cuGraphInstantiateWithFlags");
}
int graph_launch(void*, void*) { return note("cuGraphLaunch"); }
int graph_destroy(void*) { return note("cuGraphDestroy"); }
int exec_destroy(void*) { return note("cuGraphExecDestroy"); }
int exchange_mode(int* mode) { return std::swap(*mode, capture_mode), 0; }

const std::map<std::string, void*>& functions() {
#define F(name, function) \
  { "cu" #name, reinterpret_cast<void*>(function) }
  static const std::map<std::string, void*> table = {
      F(Init, init),
      F(DriverGetVersion, driver_version),
      F(GetErrorName, error_name),
      F(GetErrorString, error_string),
      F(DeviceGet, device_get),
      F(DeviceGetCount, device_count),
      F(DeviceGetName, device_name),
      F(DeviceGetAttribute, device_attribute),
      F(DeviceTotalMem, device_memory),
      F(DevicePrimaryCtxRetain, retain),
      F(CtxSetCurrent, set_current),
      F(CtxGetCurrent, get_current),
      F(CtxPushCurrent, push),
      F(CtxPopCurrent, pop),
      F(CtxSynchronize, synchronize),
      F(ModuleLoadData, module_load),
      F(ModuleUnload, module_unload),
      F(ModuleGetFunction, module_function),
      F(FuncSetAttribute, func_set),
      F(FuncGetAttribute, func_get),
      F(FuncLoad, func_load),
      F(OccupancyMaxActiveBlocksPerMultiprocessor, occupancy),
      F(TensorMapEncodeTiled, tensor_map),
      F(LaunchKernelEx, launch),
      F(MemAlloc, mem_alloc),
      F(MemFree, mem_free),
      F(MemHostAlloc, host_alloc),
      F(MemFreeHost, host_free),
      F(MemcpyHtoD, copy),
      F(MemcpyDtoH, copy),
      F(MemcpyHtoDAsync, copy_async),
      F(MemcpyDtoHAsync, copy_async),
      F(MemcpyDtoDAsync, copy_async),
      F(MemsetD8Async, fill8),
      F(MemsetD32Async, fill32),
      F(StreamCreate, stream_create),
      F(StreamDestroy, stream_destroy),
      F(StreamSynchronize, stream_synchronize),
      F(StreamWaitEvent, stream_wait),
      F(StreamBeginCapture, begin_capture),
      F(StreamEndCapture, end_capture),
      F(StreamIsCapturing, capturing),
      F(EventCreate, event_create),
      F(EventDestroy, event_destroy),
      F(EventRecord, event_record),
      F(EventQuery, event_query),
      F(EventSynchronize, event_synchronize),
      F(EventElapsedTime, event_elapsed),
      F(GraphGetNodes, graph_nodes),
      F(GraphInstantiateWithFlags, graph_instantiate),
      F(GraphLaunch, graph_launch),
      F(GraphDestroy, graph_destroy),
      F(GraphExecDestroy, exec_destroy),
      F(ThreadExchangeStreamCaptureMode, exchange_mode)};
#undef F
  return table;
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int* status) {
  const std::string name = symbol, wish = role();
  *function = nullptr;
  *status = 1;  // not found
  if (wish == "stub") return 34;
  if (wish == "old" && name == "cuLaunchKernelEx") return 500;
  if (wish == "no_func_load" && name == "cuFuncLoad") return 500;
  const bool has_maps = wish == "maps" || wish.compare(0, name.size(), name) == 0;
  if (name == "cuTensorMapEncodeTiled" && !has_maps) return 500;
  const auto at = functions().find(name);
  if (at == functions().end()) return 500;
  *function = at->second;
  if (wish == "quiet" && name == "cuLaunchKernelEx")
    *function = reinterpret_cast<void*>(quiet_launch);
  *status = 0;
  return 0;
}

const char* mock_calls() { return calls.c_str(); }

int mock_forget_context(void*) { return current = nullptr, 0; }
}
