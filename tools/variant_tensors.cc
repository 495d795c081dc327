#include "tools/variant_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/error.h"
#include "tools/random.h"

namespace heddle::tools {
namespace {

// Whole numbers in the range that the spec gives (else 0 and 1), floats too (else near 0): values
// that suit ids, lengths and packed bits, biases and slopes.
struct Values {
  explicit Values(const TensorParam& param)
      : dtype(param.dtype), has_range(param.min || param.max), min(param.min.value_or(0)),
        max(param.max.value_or(std::max(min, 1.0))) {}

  double draw(Random& random) const {
    if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16)
      return has_range ? min + (max - min) * random.uniform() : 0.1 * random.normal();
    return std::min(max, min + std::floor((max - min + 1) * random.uniform()));
  }

  void write(double value, std::byte* at) const {
    const auto put = [&](auto element) { std::memcpy(at, &element, sizeof element); };
    switch (dtype) {
      case DType::f32: return put(static_cast<float>(value));
      case DType::f16:
      case DType::bf16: return put(from_float(static_cast<float>(value), dtype));
      case DType::i32: return put(static_cast<std::int32_t>(value));
      case DType::u8: return put(static_cast<std::uint8_t>(value));
      case DType::u32: return put(static_cast<std::uint32_t>(value));
    }
  }

  DType dtype;
  bool has_range;
  double min, max;
};

constexpr std::int64_t kMostDrawn = 4194301;  // odd, so that it divides no row

// A long tensor repeats its first values: gigabytes are not drawn one by one.
std::vector<std::byte> random_values(const TensorParam& param, std::int64_t count, Random& random) {
  const Values values(param);
  const std::size_t element = std::size_t(bytes_of(param.dtype));
  std::vector<std::byte> bytes(std::size_t(count) * element);
  const std::size_t drawn = std::size_t(std::min(count, kMostDrawn)) * element;
  for (std::size_t at = 0; at < drawn; at += element)
    values.write(values.draw(random), bytes.data() + at);
  for (std::size_t at = drawn; at < bytes.size(); at += drawn)
    std::memcpy(bytes.data() + at, bytes.data(), std::min(drawn, bytes.size() - at));
  return bytes;
}

// The declared shape, rows one behind the other.
Tensor shaped(const TensorParam& param, const ShapeWords& words, const std::vector<double>& params) {
  Tensor tensor{.dtype = param.dtype, .rank = int(param.shape.size())};
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = axis_size(param.shape[axis], words, params);
    if (tensor.shape[axis] < 0)
      fail(ErrorKind::invalid_argument, "The size of {}, axis {} of tensor {}, is not known here.",
           param.shape[axis].text, axis, param.name);
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

}  // namespace

ShapeWords shape_words(const AttentionConfig& config, std::span<const std::int32_t> qo_lens,
                       std::span<const std::int32_t> kv_lens) {
  const auto longest = [](std::span<const std::int32_t> lens) {
    return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
  };
  return {.num_qo_heads = config.num_qo_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .head_dim_vo = config.vo_dim(),
          .num_qo_rows = std::accumulate(qo_lens.begin(), qo_lens.end(), std::int64_t{0}),
          .num_requests = std::int64_t(kv_lens.size()),
          .qo_len = longest(qo_lens),
          .kv_len = longest(kv_lens)};
}

VariantTensors::VariantTensors(const Engine& engine, const Variant& variant, const ShapeWords& words,
                               const ParamValues& params, std::uint64_t seed) {
  if (variant.tensors.empty()) return;
  Random random(seed);
  const std::vector<double> values = variant.resolve(params);
  for (const TensorParam& param : variant.tensors) {
    Tensor tensor = shaped(param, words, values);
    std::int64_t count = 1;
    for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.shape[axis];
    host_.push_back(random_values(param, count, random));
    device_.emplace_back(engine, std::max<std::size_t>(host_.back().size(), 16));
    device_.back().write(0, host_.back());
    tensor.data = host_.back().data();
    // An empty one has no bytes on the host, but a hook's argument still needs an address.
    if (tensor.data == nullptr) tensor.data = device_.back().data();
    on_host_[param.name] = tensor;
    tensor.data = device_.back().data();
    on_device_[param.name] = tensor;
  }
}

double VariantTensors::bytes() const {
  double bytes = 0;
  for (const std::vector<std::byte>& values : host_) bytes += double(values.size());
  return bytes;
}

}  // namespace heddle::tools
