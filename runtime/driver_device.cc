// Devices, modules and kernels.
#include <array>

#include "runtime/cuda_table.h"

namespace heddle {

namespace {

int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  check(cuda().DeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

int attribute_of(void* function, CUfunction_attribute attribute) {
  int value = 0;
  check(cuda().FuncGetAttribute(&value, attribute, static_cast<CUfunction>(function)),
        "cuFuncGetAttribute");
  return value;
}

}  // namespace

Device Device::open(int ordinal) {
  const Driver* driver = Driver::get();
  if (driver == nullptr) fail_without_driver();
  if (ordinal < 0 || ordinal >= driver->num_devices()) {
    fail(ErrorKind::unsupported, "There is no CUDA device {}; the driver has {}, counted from 0.",
         ordinal, driver->num_devices());
  }
  CUdevice id = 0;
  CUcontext context = nullptr;
  check(cuda().DeviceGet(&id, ordinal), "cuDeviceGet");
  check(cuda().DevicePrimaryCtxRetain(&context, id), "cuDevicePrimaryCtxRetain");
  Device device;
  device.context_ = context;
  device.ordinal_ = ordinal;
  std::array<char, 256> name{};
  check(cuda().DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, id),
        "cuDeviceGetName");
  device.name_ = name.data();
  check(cuda().DeviceTotalMem(&device.total_bytes_, id), "cuDeviceTotalMem");
  device.num_sms_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  device.major_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  device.minor_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  device.max_shared_per_block_ =
      attribute_of(id, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  device.shared_per_sm_ =
      attribute_of(id, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  device.registers_per_sm_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  device.max_threads_per_sm_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  device.l2_bytes_ = attribute_of(id, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  device.make_current();
  return device;
}

void Device::make_current() const {
  check(cuda().CtxSetCurrent(static_cast<CUcontext>(context_)), "cuCtxSetCurrent");
}

void Device::synchronize() const {
  make_current();
  check(cuda().CtxSynchronize(), "cuCtxSynchronize");
}

bool encode_tensor_map(void* map, const TensorMapShape& t) {
  if (cuda().TensorMapEncodeTiled == nullptr) return false;
  std::array<cuuint64_t, TensorMapShape::kMaxRank> extent{}, stride{};
  std::array<cuuint32_t, TensorMapShape::kMaxRank> box{}, step{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) {
    extent[i] = t.extent[i];
    box[i] = t.box[i];
    step[i] = 1;
    if (i > 0) stride[i - 1] = t.stride_bytes[i];
  }
  // L2 fetches 128 bytes at once. With 256, what memory gives is short of what rows need: on an H200, wgmma append, 8
  // tokens of 32 requests 133.5 us for 130.9, head_dim 64 98.5 for 72.4 (half of it other heads' rows), 256 267 for 255;
  // with none, the same, but 16k tokens of prefill 3390 for 3354.
  const auto swizzle = t.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : t.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                               : CU_TENSOR_MAP_SWIZZLE_32B;
  return cuda().TensorMapEncodeTiled(
             static_cast<CUtensorMap*>(map),
             t.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             static_cast<cuuint32_t>(t.rank), const_cast<void*>(t.base), extent.data(), stride.data(),
             box.data(), step.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

void Kernel::launch(Dim3 grid, Dim3 block, int smem_bytes, Stream stream, void** args,
                    bool programmatic) const {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = block.x;
  config.blockDimY = block.y;
  config.blockDimZ = block.z;
  config.sharedMemBytes = static_cast<unsigned>(smem_bytes);
  config.hStream = native(stream);
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  check(cuda().LaunchKernelEx(&config, static_cast<CUfunction>(function), args, nullptr),
        "cuLaunchKernelEx");
}

void Kernel::set_max_dynamic_smem(int bytes) const {
  check(cuda().FuncSetAttribute(static_cast<CUfunction>(function),
                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes),
        "cuFuncSetAttribute");
}

int Kernel::max_active_blocks_per_sm(int threads, int smem_bytes) const {
  int blocks = 0;
  check(cuda().OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, static_cast<CUfunction>(function),
                                                         threads,
                                                         static_cast<std::size_t>(smem_bytes)),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

int Kernel::registers() const { return attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS); }
int Kernel::local_bytes() const {
  return attribute_of(function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
}
int Kernel::shared_bytes() const {
  return attribute_of(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
}
int Kernel::max_threads_per_block() const {
  return attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
}

void Kernel::load() const {
  const RelaxedCaptureScope relaxed;
  if (cuda().FuncLoad != nullptr) {
    check(cuda().FuncLoad(static_cast<CUfunction>(function)), "cuFuncLoad");
  } else {
    registers();  // older drivers load to answer
  }
}

Module::Module(std::string_view image) : context_(current_context()) {
  const RelaxedCaptureScope relaxed;
  CUmodule module = nullptr;
  check(cuda().ModuleLoadData(&module, image.data()), "cuModuleLoadData");
  module_ = module;
}

Module::~Module() {
  if (module_ == nullptr) return;
  const ContextScope scope(context_);
  if (scope.active()) cuda_table->ModuleUnload(static_cast<CUmodule>(module_));
}

Module::Module(Module&& other) noexcept
    : module_(std::exchange(other.module_, nullptr)), context_(other.context_) {}

Module& Module::operator=(Module&& other) noexcept {
  std::swap(module_, other.module_);
  std::swap(context_, other.context_);
  return *this;
}

Kernel Module::kernel(const std::string& entry) const {
  CUfunction function = nullptr;
  {
    const RelaxedCaptureScope relaxed;
    check(cuda().ModuleGetFunction(&function, static_cast<CUmodule>(module_), entry.c_str()),
          "cuModuleGetFunction");
  }
  const Kernel kernel{function};
  kernel.load();
  return kernel;
}

bool Module::refused(const Error& error) {
  if (error.kind() != ErrorKind::driver) return false;
  const std::string_view message = error.what();
  for (const char* name : {"CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU",
                           "CUDA_ERROR_INVALID_SOURCE", "CUDA_ERROR_NOT_FOUND"}) {
    if (message.find(name) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace heddle
