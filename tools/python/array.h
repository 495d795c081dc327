// Python objects as arrays, without a copy and without importing any framework.
//
// Tried in this order: the C functions that a tensor type offers (DLPack 1.3; PyTorch from 2.10),
// __dlpack__, __array_interface__ (NumPy types that DLPack has no name for) and
// __cuda_array_interface__.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "engine/types.h"
#include "tools/python/dlpack.h"

namespace heddle::python {

// Where arrays of an Engine lie.
struct Place {
  bool on_gpu = false;
  int ordinal = 0;  // of the GPU
};
inline constexpr int kAnyGpu = -1;  // __cuda_array_interface__ does not say which

struct Array {
  void* data = nullptr;
  dlpack::DataType type{};
  int rank = 0;
  std::array<std::int64_t, Tensor::kMaxRank> shape{}, strides{};  // elements
  Place place;
  bool read_only = false;
  nanobind::object owner;  // keeps `data` alive where the object itself does not
};

// `name` is for the error's sentence. `stream` is where the array will be used: a producer other
// than PyTorch is asked to make it wait for whatever still writes the array.
Array read_array(nanobind::handle object, std::string_view name, Stream stream);

// What a run needs: a known dtype, on the Engine's device. uint16 counts as the bits of bf16, which
// NumPy has no type for; bool as u8.
Tensor read_tensor(nanobind::handle object, std::string_view name, const Place& place,
                   Stream stream, bool written, nanobind::object& owner);

// The tensors of one call, alive as long as this is.
class TensorReader {
 public:
  TensorReader(const Place& place, Stream stream) : place_(place), stream_(stream) {}
  Tensor input(nanobind::handle object, std::string_view name) { return read(object, name, false); }
  Tensor output(nanobind::handle object, std::string_view name) { return read(object, name, true); }

 private:
  Tensor read(nanobind::handle object, std::string_view name, bool written);

  const Place& place_;
  Stream stream_;
  std::vector<nanobind::object> owners_;
};

}  // namespace heddle::python
