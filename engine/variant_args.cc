#include "engine/variant_args.h"

#include <cstdint>
#include <cstring>

#include "engine/error.h"

namespace heddle {
namespace {

template <class T>
void put(VariantArgs& args, int offset, T value) {
  std::memcpy(args.bytes + offset, &value, sizeof value);
}

void check_axis(const Variant& variant, const TensorParam& param, const Tensor& tensor, int axis,
                std::int64_t wanted) {
  if (tensor.shape[axis] < wanted)
    fail(ErrorKind::invalid_argument, "Tensor \"{}\" of variant {} has {} elements on axis {}; {} asks for at least {}.",
         param.name, variant.name, tensor.shape[axis], axis, param.shape[axis].text, wanted);
}

void put_tensor(const Variant& variant, const TensorParam& param, const std::map<std::string, Tensor>& tensors,
                const ShapeWords& words, const std::vector<double>& values, VariantArgs& args, int offset) {
  const auto found = tensors.find(param.name);
  if (found == tensors.end() || !found->second.data)
    fail(ErrorKind::invalid_argument, "Variant {} reads a tensor \"{}\" ({}), which was not given.", variant.name,
         param.name, name_of(param.dtype));
  const Tensor& tensor = found->second;
  if (tensor.dtype != param.dtype)
    fail(ErrorKind::invalid_argument, "Tensor \"{}\" of variant {} holds {}; its spec says {}.", param.name,
         variant.name, name_of(tensor.dtype), name_of(param.dtype));
  if (tensor.rank != static_cast<int>(param.shape.size()))
    fail(ErrorKind::invalid_argument, "Tensor \"{}\" of variant {} has {} axes; its spec says {}.", param.name,
         variant.name, tensor.rank, param.shape.size());
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<unsigned>(bytes_of(param.dtype)) != 0)
    fail(ErrorKind::invalid_argument, "Tensor \"{}\" of variant {} starts at {}, which is not a multiple of {} bytes.",
         param.name, variant.name, tensor.data, bytes_of(param.dtype));
  const int last = tensor.rank - 1;
  if (last > 0 && tensor.shape[last] > 1 && tensor.strides[last] != 1)
    fail(ErrorKind::invalid_argument,
         "Tensor \"{}\" of variant {} has stride {} on its last axis; the last of several axes must be contiguous (stride 1).",
         param.name, variant.name, tensor.strides[last]);
  for (int axis = 0; axis < tensor.rank; ++axis)
    check_axis(variant, param, tensor, axis, axis_size(param.shape[axis], words, values));
  put(args, offset, tensor.data);
  for (int axis = 0; axis < kMaxTensorRank; ++axis)
    put(args, offset + 8 + 8 * axis, axis < tensor.rank ? tensor.strides[axis] : std::int64_t{0});
}

}  // namespace

void pack_params(const Variant& variant, const ArgLayout& layout, const std::vector<double>& values, VariantArgs& args) {
  for (std::size_t i = 0; i < variant.params.size(); ++i) {
    if (layout.param_offsets[i] < 0) continue;
    if (variant.params[i].is_float)
      put(args, layout.param_offsets[i], static_cast<float>(values[i]));
    else
      put(args, layout.param_offsets[i], static_cast<std::int32_t>(values[i]));
  }
}

void pack_tensors(const Variant& variant, const ArgLayout& layout, const std::map<std::string, Tensor>& tensors,
                  const ShapeWords& words, const std::vector<double>& values, VariantArgs& args) {
  for (const auto& [name, tensor] : tensors) {
    bool known = false;
    for (const TensorParam& param : variant.tensors) known = known || param.name == name;
    if (!known) fail(ErrorKind::invalid_argument, "Variant {} reads no tensor named \"{}\".", variant.name, name);
  }
  for (std::size_t i = 0; i < variant.tensors.size(); ++i)
    put_tensor(variant, variant.tensors[i], tensors, words, values, args, layout.tensor_offsets[i]);
}

}  // namespace heddle
