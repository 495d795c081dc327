#include "tools/variant_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "engine/error.h"
#include "tools/random.h"

namespace heddle::tools {
namespace {

std::int64_t size_of(const std::string& word, const std::map<std::string, std::int64_t>& words) {
  if (const auto found = words.find(word); found != words.end()) return found->second;
  std::int64_t size = 0;
  std::from_chars(word.data(), word.data() + word.size(), size);
  return size;
}

// Floats near 0, whole numbers 0 and 1: values that suit biases, slopes and masks alike.
std::vector<std::byte> random_values(DType dtype, std::int64_t count, Random& random) {
  const std::size_t element = std::size_t(bytes_of(dtype));
  std::vector<std::byte> bytes(std::size_t(count) * element);
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + std::size_t(i) * element;
    const float value = float(0.1 * random.normal());
    const std::int32_t whole = random.below(2);
    const std::uint16_t half =
        dtype == DType::f16 || dtype == DType::bf16 ? from_float(value, dtype) : 0;
    switch (dtype) {
      case DType::f32:
        std::memcpy(at, &value, element);
        break;
      case DType::f16:
      case DType::bf16:
        std::memcpy(at, &half, element);
        break;
      case DType::i32:
      case DType::u8:
        std::memcpy(at, &whole, element);
        break;  // little-endian
    }
  }
  return bytes;
}

Tensor shaped(const TensorParam& param, void* data,
              const std::map<std::string, std::int64_t>& words) {
  Tensor tensor{.data = data, .dtype = param.dtype, .rank = int(param.shape.size())};
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = size_of(param.shape[axis], words);
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

}  // namespace

VariantTensors::VariantTensors(const Engine& engine, const Variant& variant,
                               const std::map<std::string, std::int64_t>& words,
                               std::uint64_t seed) {
  Random random(seed);
  for (const TensorParam& param : variant.tensors) {
    std::int64_t count = 1;
    for (const std::string& word : param.shape) count *= size_of(word, words);
    host_.push_back(random_values(param.dtype, count, random));
    device_.emplace_back(engine, std::max<std::size_t>(host_.back().size(), 16));
    device_.back().write(0, host_.back());
    on_host_[param.name] = shaped(param, host_.back().data(), words);
    on_device_[param.name] = shaped(param, device_.back().data(), words);
  }
}

}  // namespace heddle::tools
