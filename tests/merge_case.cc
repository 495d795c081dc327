#include "tests/merge_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "tools/half.h"

namespace heddle_tests {

using namespace heddle;
using tools::Random;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kF32 = 3e-6;  // of ex2.approx, lg2.approx and f32 sums, relative above 1

template <class T>
T pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(int(values.size()))];
}

double element(const std::vector<std::byte>& bytes, std::int64_t i, DType dtype) {
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes.data() + i * 2, 2);
  return tools::to_float(bits, dtype);
}

void put(std::vector<std::byte>& bytes, std::int64_t i, DType dtype, double value) {
  const float x = float(value);
  const std::uint16_t bits = dtype == DType::f32 ? 0 : tools::from_float(x, dtype);
  std::memcpy(bytes.data() + i * bytes_of(dtype), dtype == DType::f32 ? static_cast<const void*>(&x) : &bits, bytes_of(dtype));
}

std::vector<std::byte> bytes_in(const tools::DeviceMemory& memory) {
  std::vector<std::byte> bytes(memory.bytes());
  memory.read(0, bytes);
  return bytes;
}

double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0; }

}  // namespace

std::string MergeShape::describe() const {
  return fmt::format("{} states of {} rows, {} heads, head_dim {}, {} to {}", num_states, num_rows, num_heads, config.head_dim,
                     name_of(config.state_dtype), name_of(config.o_dtype));
}

MergeCase::MergeCase(const Engine& engine, const MergeShape& shape, std::uint64_t seed) : shape_(shape) {
  Random random(seed);
  for (int s = 0; s < shape.num_states; ++s) states_.push_back(make_state(engine, shape.config.state_dtype, random, true));
  result_ = make_state(engine, shape.config.o_dtype, random, false);
}

MergeCase::State MergeCase::make_state(const Engine& engine, DType dtype, Random& random, bool filled) {
  const int dim = shape_.config.head_dim;
  State s{.dtype = dtype};
  s.head = dim + 8 * random.below(2), s.row = s.head * shape_.num_heads + 8 * random.below(2);
  s.lse_head = 1 + random.below(2), s.lse_row = s.lse_head * shape_.num_heads + random.below(3);
  if (random.below(2)) s.lse_head = shape_.num_rows, s.lse_row = 1;
  std::vector<std::byte> o((shape_.num_rows + 1) * s.row * bytes_of(dtype), std::byte{0xff});
  std::vector<std::byte> lse(((shape_.num_rows + 1) * s.lse_row + shape_.num_heads * s.lse_head) * 4, std::byte{0xff});
  for (int i = 0; filled && i < shape_.num_rows * shape_.num_heads; ++i) {
    const int row = i / shape_.num_heads, head = i % shape_.num_heads, kind = random.below(5);
    s.lse_values.push_back(kind == 0 ? -kInf : kind == 1 && random.below(2) ? kInf : float(random.normal() * (kind == 2 ? 60 : 3)));
    put(lse, row * s.lse_row + head * s.lse_head, DType::f32, s.lse_values.back());
    for (int d = 0; d < dim; ++d) {
      const std::int64_t at = row * s.row + head * s.head + d;
      if (!std::isinf(s.lse_values.back())) put(o, at, dtype, random.normal());
      s.values.push_back(element(o, at, dtype));
    }
  }
  s.o = tools::DeviceMemory(engine, o.size()), s.lse = tools::DeviceMemory(engine, lse.size());
  s.o.write(0, o), s.lse.write(0, lse);
  return s;
}

PartialState MergeCase::state(const State& s) const {
  return {{s.o.data(), s.dtype, 3, {shape_.num_rows, shape_.num_heads, shape_.config.head_dim}, {s.row, s.head, 1}},
          {s.lse.data(), DType::f32, 2, {shape_.num_rows, shape_.num_heads}, {s.lse_row, s.lse_head}}};
}

std::vector<PartialState> MergeCase::states() const {
  std::vector<PartialState> list;
  for (const State& s : states_) list.push_back(state(s));
  return list;
}

std::vector<std::uint32_t> MergeCase::read(const PartialState& wanted) const {
  std::vector<std::uint32_t> bits;
  for (std::size_t i = 0; i <= states_.size(); ++i) {
    const State& s = i < states_.size() ? states_[i] : result_;
    if (s.o.data() != wanted.o.data) continue;
    const std::vector<std::byte> o = bytes_in(s.o), lse = bytes_in(s.lse);
    const auto add = [&](double x) {
      const float f = float(x);
      std::memcpy(&bits.emplace_back(), &f, 4);
    };
    for (int row = 0; row < shape_.num_rows; ++row)
      for (int head = 0; head < shape_.num_heads; ++head) {
        for (int d = 0; d < shape_.config.head_dim; ++d) add(element(o, row * s.row + head * s.head + d, s.dtype));
        add(element(lse, row * s.lse_row + head * s.lse_head, DType::f32));
      }
  }
  return bits;
}

std::string MergeCase::verdict() const {
  std::vector<std::byte> o = bytes_in(result_.o), lse = bytes_in(result_.lse);
  const int dim = shape_.config.head_dim, width = bytes_of(result_.dtype);
  for (int row = 0; row < shape_.num_rows; ++row) {
    for (int head = 0; head < shape_.num_heads; ++head) {
      std::vector<double> found;
      for (int d = 0; d < dim; ++d) found.push_back(element(o, row * result_.row + head * result_.head + d, result_.dtype));
      const std::int64_t at = row * result_.lse_row + head * result_.lse_head;
      const std::string wrong = verdict_of_row(row, head, found, element(lse, at, DType::f32));
      if (!wrong.empty()) return wrong;
      std::fill_n(o.begin() + (row * result_.row + head * result_.head) * width, dim * width, std::byte{0xff});
      std::fill_n(lse.begin() + at * 4, 4, std::byte{0xff});
    }
  }
  const auto written = [](std::byte b) { return b != std::byte{0xff}; };
  if (std::any_of(o.begin(), o.end(), written) || std::any_of(lse.begin(), lse.end(), written))
    return "something beside the result was written";
  return "";
}

std::string MergeCase::verdict_of_row(int row, int head, const std::vector<double>& o, double lse) const {
  const int dim = shape_.config.head_dim, index = row * shape_.num_heads + head;
  double max = -kInf, sum = 0;
  for (const State& s : states_)
    if (!std::isinf(s.lse_values[index])) max = std::max(max, s.lse_values[index]);
  std::vector<double> exact(dim, 0.0);
  for (const State& s : states_) {
    if (std::isinf(s.lse_values[index])) continue;
    const double weight = std::exp(s.lse_values[index] - max);
    sum += weight;
    for (int d = 0; d < dim; ++d) exact[d] += weight * s.values[std::size_t(index) * dim + d];
  }
  const double exact_lse = sum == 0 ? -kInf : max + std::log(sum);
  if (lse != exact_lse && !(std::abs(lse - exact_lse) <= kF32 * std::max(1.0, std::abs(exact_lse))))
    return fmt::format("row {} head {}: lse {}, and not {}", row, head, lse, exact_lse);
  for (int d = 0; d < dim; ++d) {
    const double right = sum == 0 ? 0 : exact[d] / sum;
    // exp(x) as 2^(x log2 e) in f32: the exponent's own rounding grows with it.
    const double allowed = std::abs(right) * rounding(result_.dtype) + 1e-5;
    if (!(std::abs(o[d] - right) <= allowed))
      return fmt::format("row {} head {} column {}: {}, and not {}", row, head, d, o[d], right);
  }
  return "";
}

MergeShape random_merge(Random& random) {
  const auto dtype = [&] { return pick(random, {DType::f32, DType::bf16, DType::f16}); };
  return {.config = {.head_dim = pick(random, {8, 64, 80, 96, 128, 256, 512}), .state_dtype = dtype(), .o_dtype = dtype()},
          .num_states = pick(random, {1, 2, 3, 8, 64}),
          .num_rows = 1 + random.below(20),
          .num_heads = pick(random, {1, 3, 8})};
}

}  // namespace heddle_tests
