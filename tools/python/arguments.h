// What Python callers write for heddle's words: streams, dtypes, layouts, lists of lengths.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "engine/engine.h"
#include "tools/python/array.h"

namespace heddle::python {

// None: PyTorch's current stream where the program has imported it, else the legacy default stream.
// Else an integer (a CUstream), or an object with cuda_stream or __cuda_stream__. The CPU device,
// where everything is synchronous, has none.
Stream read_stream(nanobind::handle stream, const Place& place);

// "bf16", "bfloat16", torch.bfloat16, numpy.float16, ... of q, k and v.
DType read_dtype(nanobind::handle dtype);
// The same, or f32: of partial states.
DType read_state_dtype(nanobind::handle dtype);

AppendKv read_append_kv(std::string_view word);

KvLayout read_layout(std::string_view layout);

// "auto", "cpu", "cuda", "cuda:1", torch.device("cuda:1")
void read_device(nanobind::handle device, EngineOptions& options);

// One of a batch's lists of lengths as 32-bit integers on the host: a list, a tuple or an array of
// one axis. Contiguous int32 is read in place.
class HostInts {
 public:
  // `copy`: an array on the GPU is fetched, which waits for `stream`; else it is refused.
  HostInts(nanobind::handle object, std::string_view name, Stream stream, bool copy);
  std::span<const std::int32_t> values() const { return values_; }

 private:
  void read_sequence(nanobind::handle object, std::string_view name);
  void read_array(const Array& array, std::string_view name, Stream stream, bool copy);
  void convert(const Array& array, const void* data, std::string_view name);

  std::vector<std::int32_t> own_;
  std::span<const std::int32_t> values_;
  nanobind::object owner_;
};

}  // namespace heddle::python
