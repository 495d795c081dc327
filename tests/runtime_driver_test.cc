// The driver's owners against a mock libcuda.so.1, each case in a child process of its own: the
// driver is found once a process.
#include "runtime/driver.h"

#include <array>
#include <memory>
#include <stdexcept>

#include "tests/catch.h"
#include "tests/mock_driver.h"
#include "tests/patience.h"
#include "tests/runtime_support.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

void expect_no_driver(const std::string& part) {
  expect(Driver::get() == nullptr, "no driver");
  expect_in(Driver::why_not(), part);
  const Error error = error_of([] { Device::open(); });
  expect(error.kind() == ErrorKind::unsupported, "kind unsupported");
  expect_in(error.what(), part);
}

}  // namespace

TEST_CASE("driver: without a libcuda there is a sentence", "[driver]") {
  CHECK(end_of(start_child([] {
          if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) return 0;  // there is one
          expect_no_driver("no CUDA driver was found (libcuda.so.1");
          return 0;
        })) == 0);
}

TEST_CASE("driver: a stub, no device and an old driver are sentences", "[driver]") {
  CHECK(with_mock("stub", [] { expect_no_driver("stub"); }) == 0);
  CHECK(with_mock("no_device", [] { expect_no_driver("finds no device"); }) == 0);
  CHECK(with_mock("old", [] { expect_no_driver("cuLaunchKernelEx"); }) == 0);
  CHECK(with_mock("cuInit=2", [] { expect_no_driver("CUDA_ERROR_OUT_OF_MEMORY"); }) == 0);
}

TEST_CASE("driver: a device tells what it is", "[driver]") {
  CHECK(with_mock("", [] {
          const Device device = Device::open(0);
          expect(Driver::get()->version() == 12080, "version");
          expect(device.name() == "Mock H200", "name");
          expect(device.num_sms() == 132 && device.major() == 9 && device.minor() == 0,
                 "SMs, capability");
          expect(device.max_shared_per_block() == 232448 && device.shared_per_sm() == 233472,
                 "shared");
          expect(device.l2_bytes() == 62914560 && device.total_bytes() == std::size_t{141} << 30,
                 "L2, memory");
          expect_in(error_of([] { Device::open(1); }).what(), "no CUDA device 1; the driver has 1");
          expect_in(error_of([] { Device::open(-1); }).what(), "no CUDA device -1");
        }) == 0);
}

TEST_CASE("driver: a module is loaded relaxed, its kernel launched", "[driver]") {
  CHECK(with_mock("", [] {
          const Device device = Device::open();
          {
            const Module module("image");
            const Kernel kernel = module.kernel("attention");
            kernel.set_max_dynamic_smem(200'000);
            int value = 7;
            void* args[] = {&value};
            kernel.launch({132}, {256}, 200'000, nullptr, args);
            kernel.launch({1, 2, 3}, {32}, 0, nullptr, args, true);
            expect(kernel.max_active_blocks_per_sm(256, 1000) == 8, "occupancy");
            expect(kernel.registers() == 104 && kernel.local_bytes() == 103 &&
                       kernel.shared_bytes() == 101,
                   "attributes");
            expect_in(error_of([&] { module.kernel("absent"); }).what(), "cuModuleGetFunction");
          }
          const std::string calls = mock_calls();
          expect_in(calls,
                    "cuModuleLoadData(2) cuModuleGetFunction(attention) cuFuncLoad(2) "
                    "cuFuncSetAttribute(8,200000)");
          expect_in(calls,
                    "cuLaunchKernelEx(132 1 1,256,200000,0 attributes,7) cuLaunchKernelEx(1 2 "
                    "3,32,0,1 attributes,7)");
          expect_in(calls, "cuModuleUnload");
        }) == 0);
  CHECK(with_mock("no_func_load", [] {
          const Device device = Device::open();
          Module("image").kernel("attention");
        }) == 0);
}

TEST_CASE("driver: a tensor map is asked for as it is described", "[driver]") {
  // Rows of head_dim 64 of two heads, in pages of 16.
  const TensorMapShape shape{.bf16 = true,
                             .rank = 3,
                             .extent = {64, 16, 9},
                             .stride_bytes = {2, 256, 4096},
                             .box = {64, 8, 1},
                             .swizzle_bytes = 128};
  CHECK(with_mock("maps", [&] {
          const Device device = Device::open();
          TensorMapShape other = shape;
          other.bf16 = false, other.rank = 2, other.swizzle_bytes = 64;
          expect(encode_tensor_map(nullptr, shape) && encode_tensor_map(nullptr, other), "made");
          other.swizzle_bytes = 32;
          expect(encode_tensor_map(nullptr, other), "made");
          // The driver's numbers: bf16 is 9, f16 is 6; swizzles of 128, 64 and 32 are 3, 2 and 1.
          expect_in(mock_calls(),
                    "cuTensorMapEncodeTiled(9,3,64,16,9;256,4096;64,8,1;3) "
                    "cuTensorMapEncodeTiled(6,2,64,16;256;64,8;2) "
                    "cuTensorMapEncodeTiled(6,2,64,16;256;64,8;1) ");
        }) == 0);
  CHECK(with_mock("cuTensorMapEncodeTiled=1", [&] {
          const Device device = Device::open();
          expect(!encode_tensor_map(nullptr, shape), "refused by the driver");
        }) == 0);
  CHECK(with_mock("", [&] {
          const Device device = Device::open();
          expect(!encode_tensor_map(nullptr, shape), "none in this driver");
        }) == 0);
}

TEST_CASE("driver: memory is copied, filled and freed once", "[driver]") {
  CHECK(with_mock("", [] {
          const Device device = Device::open();
          {
            PinnedBuffer pinned(16), other = std::move(pinned);
            expect(pinned.data() == nullptr && other.data() != nullptr, "pinned memory moved");
            pinned = std::move(other);
            expect(other.data() == nullptr && pinned.data() != nullptr, "and back");
            DeviceBuffer first(16);
            DeviceBuffer buffer = std::move(first);
            expect(first.data() == nullptr && first.bytes() == 0 && buffer.bytes() == 16, "moved");
            fill8_async(buffer.data(), 0xff, 16, nullptr);
            fill32_async(buffer.data(), 5, 1, nullptr);
            std::array<std::uint32_t, 4> host{};
            copy_to_host(host.data(), buffer.data(), 16);
            expect(host[0] == 5 && host[1] == 0xffffffff, "filled");
            copy_to_device_async(buffer.data(), pinned.data(), 0, nullptr);
            expect(DeviceBuffer(0).data() == nullptr, "empty buffer");
            // Freed from a thread in which no context is current, and none is left current.
            std::jthread([owned = std::move(buffer)] {}).join();
          }
          const std::string calls = mock_calls();
          expect_in(calls, "cuCtxPushCurrent cuMemFree cuCtxPopCurrent");
          expect(calls.find("cuMemFree ") == calls.rfind("cuMemFree "), "freed once");
          expect_in(calls, "cuMemFreeHost");
        }) == 0);
}

TEST_CASE("driver: streams, events and a captured graph", "[driver]") {
  CHECK(with_mock("", [] {
          const Device device = Device::open();
          {
            const StreamHandle stream = StreamHandle::create();
            const EventHandle begin = EventHandle::create(true), end = EventHandle::create();
            begin.record(stream.get());
            stream_wait_event(stream.get(), begin);
            expect(begin.reached() && elapsed_ms(begin, end) == 1.5f, "events");
            expect(!is_capturing(stream.get()), "not capturing");
            Graph::begin_capture(stream.get(), CaptureMode::thread);
            expect(is_capturing(stream.get()), "capturing");
            Graph graph = Graph::end_capture(stream.get());
            expect(graph.num_nodes() == 3, "nodes");
            graph.launch(stream.get());
            stream.synchronize();
          }
          const std::string calls = mock_calls();
          expect_in(calls, "cuStreamCreate(1) cuEventCreate(0) cuEventCreate(2)");
          expect_in(calls,
                    "cuStreamBeginCapture(1) cuStreamEndCapture cuGraphInstantiateWithFlags "
                    "cuGraphLaunch cuStreamSynchronize");
          expect_in(calls, "cuGraphExecDestroy cuGraphDestroy");
          expect_in(calls, "cuStreamDestroy");
        }) == 0);
}

TEST_CASE("driver: failed calls carry their name, CUDA's words and advice", "[driver]") {
  CHECK(with_mock("cuMemAlloc=2", [] {
          const Device device = Device::open();
          const Error error = error_of([] { DeviceBuffer buffer(1); });
          expect(error.kind() == ErrorKind::driver, "kind driver");
          expect(std::string(error.what()) ==
                     "cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (out of memory); "
                     "declare smaller maxima, or free device memory.",
                 error.what());
          expect(!Module::refused(error), "not refused");
        }) == 0);
  CHECK(with_mock("cuStreamSynchronize=700", [] {
          const Device device = Device::open();
          expect_in(error_of([] { synchronize(nullptr); }).what(), "cannot be used again");
        }) == 0);
  CHECK(with_mock("cuModuleLoadData=200", [] {
          const Device device = Device::open();
          expect(Module::refused(error_of([] { Module module("image"); })), "refused");
        }) == 0);
  CHECK(with_mock("cuStreamEndCapture=901", [] {
          const Device device = Device::open();
          expect_in(error_of([] { Graph::end_capture(nullptr); }).what(), "CAPTURE_INVALIDATED");
        }) == 0);
}

TEST_CASE("driver: a thread without a context is told to make one current", "[driver]") {
  CHECK(with_mock("", [] {
          expect_in(error_of([] { synchronize(nullptr); }).what(), "call Device::open first");
          const Device device = Device::open();
          const Module none;  // an empty owner needs nothing
          reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "mock_forget_context"))(nullptr);
          expect_in(error_of([] { DeviceBuffer buffer(1); }).what(), "make_current()");
          device.make_current();
          DeviceBuffer buffer(1);
        }) == 0);
}

TEST_CASE("driver: a forked child is refused with a sentence, and frees nothing", "[driver]") {
  CHECK(with_mock("", [] {
          const Device device = Device::open();
          auto buffer = std::make_unique<DeviceBuffer>(16);
          const int result = end_of(start_child([&] {
            expect_no_driver("was forked");
            expect_in(error_of([&] { device.make_current(); }).what(), "was forked");
            buffer.reset();
            expect(std::string(mock_calls()).find("cuMemFree") == std::string::npos,
                   "nothing freed");
            return 0;
          }));
          expect(result == 0, "the child is content");
          device.make_current();
        }) == 0);
}

TEST_CASE("driver: a launch costs little beyond the driver's own", "[driver]") {
  CHECK(with_mock("quiet", [] {
          const Device device = Device::open();
          const Kernel kernel = Module("image").kernel("attention");
          int value = 7;
          void* args[] = {&value};
          const auto begin = std::chrono::steady_clock::now();
          for (int i = 0; i < 100'000; ++i) kernel.launch({132}, {256}, 0, nullptr, args, true);
          const std::chrono::duration<double, std::nano> took =
              std::chrono::steady_clock::now() - begin;
          expect(took.count() / 100'000 < 1000 * patience(), "a launch in less than 1 us");
        }) == 0);
}
