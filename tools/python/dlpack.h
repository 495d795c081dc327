// The records of DLPack 1 that cross from one library to another, as its specification lays them
// out (https://dmlc.github.io/dlpack): the tensor, its two capsules, and the table of C functions
// with which a framework lends a tensor without a Python call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::uint64_t kReadOnly = 1;  // of VersionedTensor::flags

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  const std::int64_t* shape;
  const std::int64_t* strides;  // of elements; null: contiguous
  std::uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24);

// In a capsule named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major, minor;
};

// In a capsule named "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* manager;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

// In a capsule named "dlpack_exchange_api", an attribute of the framework's tensor type.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;  // an older table, or null
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // Lends a tensor's record for as long as the object lives and is not changed. 0, or a Python
  // error.
  int (*tensor_from_object)(void* object, Tensor* out);
  void* current_stream;
};

}  // namespace heddle::python::dlpack
