#include "runtime/driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <mutex>

#include "runtime/cuda_table.h"

namespace heddle {

const CudaTable* cuda_table = nullptr;

namespace {

struct DriverState {
  std::once_flag once;
  CudaTable table;
  Driver driver;
  bool usable = false;
  std::string why_not;
};

// Never destroyed: owners in static objects may outlive any destructor's turn.
DriverState& state() {
  static DriverState* const instance = new DriverState;
  return *instance;
}

// CUDA does not survive a fork; using it in the child would hang or corrupt. Forgetting the table
// turns every later call there into a sentence.
void forget_driver_in_child() {
  cuda_table = nullptr;
  state().usable = false;
  state().why_not =
      "this process was forked from one that had already used CUDA, which cannot be used here; "
      "start it with exec or spawn, or fork before the first use";
}

}  // namespace

// Finds the functions of one libcuda. Every step returns false with a reason in `why`.
struct DriverLoader {
  std::string& why;
  PFN_cuGetProcAddress_v12000 get_address = nullptr;
  PFN_cuGetProcAddress_v11030 get_address_old = nullptr;

  bool open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      why = fmt::format("no CUDA driver was found ({})", reason ? reason : "libcuda.so.1");
      return false;
    }
    get_address =
        reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    if (get_address == nullptr) {
      get_address_old =
          reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
    }
    if (get_address == nullptr && get_address_old == nullptr) {
      why = "the CUDA driver is older than CUDA 11.6, the oldest that serves; update the driver";
      return false;
    }
    return true;
  }

  CUresult find(const char* symbol, int version, void** function) const {
    *function = nullptr;
    if (get_address_old != nullptr) {
      return get_address_old(symbol, function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    }
    CUdriverProcAddressQueryResult status{};
    return get_address(symbol, function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
  }

  bool require(const char* symbol, int version, void** function) {
    const CUresult result = find(symbol, version, function);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
      why = "the libcuda.so.1 that the loader finds is the CUDA toolkit's stub, not a driver";
      return false;
    }
    if (result != CUDA_SUCCESS || *function == nullptr) {
      why = fmt::format("the CUDA driver has no {}; update it to one for CUDA 12 or later", symbol);
      return false;
    }
    return true;
  }

  bool fill(CudaTable& table) {
#define HEDDLE_REQUIRE(name, version) \
  if (!require("cu" #name, version, reinterpret_cast<void**>(&table.name))) return false;
#define HEDDLE_FIND(name, version) find("cu" #name, version, reinterpret_cast<void**>(&table.name));
    HEDDLE_CUDA_REQUIRED(HEDDLE_REQUIRE)
    HEDDLE_CUDA_OPTIONAL(HEDDLE_FIND)
#undef HEDDLE_REQUIRE
#undef HEDDLE_FIND
    return true;
  }

  bool initialise(const CudaTable& table, Driver& driver) {
    const CUresult result = table.Init(0);
    if (result == CUDA_ERROR_NO_DEVICE) {
      why = "the CUDA driver finds no device";
      return false;
    }
    if (result != CUDA_SUCCESS) {
      const char* name = nullptr;
      table.GetErrorName(result, &name);
      why = fmt::format("the CUDA driver does not start: cuInit gave {}",
                        name ? name : "an unknown error");
      return false;
    }
    table.DriverGetVersion(&driver.version_);
    if (table.DeviceGetCount(&driver.num_devices_) != CUDA_SUCCESS || driver.num_devices_ == 0) {
      why = "the CUDA driver finds no device";
      return false;
    }
    return true;
  }
};

namespace {

void load_driver(DriverState& state) {
  DriverLoader loader{state.why_not};
  if (!loader.open() || !loader.fill(state.table)) return;
  // Before cuInit, which is what a child must not inherit.
  pthread_atfork(nullptr, nullptr, forget_driver_in_child);
  if (!loader.initialise(state.table, state.driver)) return;
  state.usable = true;
  cuda_table = &state.table;
}

}  // namespace

const Driver* Driver::get() {
  DriverState& s = state();
  std::call_once(s.once, [&s] { load_driver(s); });
  return s.usable ? &s.driver : nullptr;
}

std::string Driver::why_not() {
  get();
  return state().why_not;
}

void fail_without_driver() {
  const std::string why = Driver::why_not();
  fail(ErrorKind::unsupported, "The GPU cannot be used: {}.",
       why.empty() ? "no device was opened; call Device::open first" : why);
}

void fail_call(CUresult result, const char* call) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (cuda_table != nullptr) {
    cuda_table->GetErrorName(result, &name);
    cuda_table->GetErrorString(result, &words);
  }
  const char* hint = "";
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
      hint =
          "; a kernel launched before failed, and the device cannot be used again by this process";
      break;
    case CUDA_ERROR_INVALID_CONTEXT:
      hint = "; call Device::make_current() in this thread first";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      hint = "; declare smaller maxima, or free device memory";
      break;
    default:
      break;
  }
  fail(ErrorKind::driver, "{} failed with {} ({}){}.", call,
       name ? name : fmt::format("CUresult {}", static_cast<int>(result)),
       words ? words : "no description", hint);
}

void* current_context() {
  CUcontext context = nullptr;
  check(cuda().CtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context == nullptr) fail_call(CUDA_ERROR_INVALID_CONTEXT, "cuCtxGetCurrent");
  return context;
}

}  // namespace heddle
