#include "planner/lengths.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "engine/error.h"

namespace heddle {
namespace {

constexpr std::int64_t kMaxRequests = 1 << 24;
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();

// Python's generator: MT19937 seeded by init_by_array with the one key word 7, integers drawn by
// rejection from the top bits. Workload files mean these very numbers.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed) {
    constexpr std::uint32_t kWords = 624;
    std::uint32_t state[kWords];
    state[0] = 19650218;
    for (std::uint32_t i = 1; i < kWords; ++i)
      state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    std::uint32_t i = 1;
    const auto next = [&] {
      if (++i == kWords) {
        state[0] = state[kWords - 1];
        i = 1;
      }
    };
    for (std::uint32_t k = 0; k < kWords; ++k, next()) {
      state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + seed;
    }
    for (std::uint32_t k = 1; k < kWords; ++k, next()) {
      state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) - i;
    }
    state[0] = 0x80000000U;
    std::copy(state, state + kWords, state_);
  }

  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto range = static_cast<std::uint64_t>(high - low + 1);
    const int bits = static_cast<int>(std::bit_width(range));
    for (;;) {
      const std::uint64_t drawn = word() >> (32 - bits);
      if (drawn < range) return low + static_cast<std::int64_t>(drawn);
    }
  }

 private:
  std::uint32_t word() {
    if (next_ == 624) refill();
    std::uint32_t y = state_[next_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }

  void refill() {
    for (int k = 0; k < 624; ++k) {
      const std::uint32_t y = (state_[k] & 0x80000000U) | (state_[(k + 1) % 624] & 0x7fffffffU);
      state_[k] = state_[(k + 397) % 624] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0U);
    }
    next_ = 0;
  }

  std::uint32_t state_[624];
  int next_ = 624;
};

// One rule being read; knows its text for the messages.
class Reader {
 public:
  explicit Reader(std::string_view rule) : rule_(rule) {}

  std::int64_t number(std::string_view text, std::string_view what, std::int64_t low,
                      std::int64_t high) const {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
      fail(ErrorKind::invalid_argument,
           "The lengths '{}' have '{}' as {}; it must be a whole number from {} to {}.", rule_,
           text, what, low, high);
    }
    return value;
  }

  std::vector<std::string_view> fields(std::string_view text, char separator, std::size_t count,
                                       std::string_view form) const {
    std::vector<std::string_view> parts;
    for (;;) {
      const std::size_t at = text.find(separator);
      parts.push_back(text.substr(0, at));
      if (at == std::string_view::npos) break;
      text.remove_prefix(at + 1);
    }
    if (count != 0 && parts.size() != count) {
      fail(ErrorKind::invalid_argument,
           "The lengths '{}' are not of the form {} ({} parts, found {}); lengths are written as "
           "[1,2,3], 64x4096, 1x131072+255x1024, zipf:256:65536 or uniform:64:256:16384.",
           rule_, form, count, parts.size());
    }
    return parts;
  }

 private:
  std::string_view rule_;
};

std::vector<std::int32_t> read_list(const Reader& read, std::string_view inside) {
  std::vector<std::int32_t> lengths;
  if (inside.find_first_not_of(' ') == std::string_view::npos) return lengths;
  for (const std::string_view item : read.fields(inside, ',', 0, "")) {
    lengths.push_back(static_cast<std::int32_t>(read.number(item, "a length", 0, kMaxLength)));
  }
  return lengths;
}

std::vector<std::int32_t> read_zipf(const Reader& read, std::string_view rule) {
  const auto parts = read.fields(rule, ':', 3, "zipf:N:MAX");
  std::vector<std::int32_t> lengths(
      static_cast<std::size_t>(read.number(parts[1], "N", 0, kMaxRequests)));
  const auto longest = static_cast<double>(read.number(parts[2], "MAX", 0, kMaxLength));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = std::max(64, static_cast<std::int32_t>(longest / static_cast<double>(i + 1)));
  }
  return lengths;
}

std::vector<std::int32_t> read_uniform(const Reader& read, std::string_view rule) {
  const auto parts = read.fields(rule, ':', 4, "uniform:N:LOW:HIGH");
  std::vector<std::int32_t> lengths(
      static_cast<std::size_t>(read.number(parts[1], "N", 0, kMaxRequests)));
  const std::int64_t low = read.number(parts[2], "LOW", 0, kMaxLength);
  const std::int64_t high = read.number(parts[3], "HIGH", low, kMaxLength);
  PythonRandom random(7);
  for (std::int32_t& length : lengths)
    length = static_cast<std::int32_t>(random.between(low, high));
  return lengths;
}

}  // namespace

std::vector<std::int32_t> parse_lengths(std::string_view rule) {
  const Reader read(rule);
  if (rule.starts_with('[') && rule.ends_with(']'))
    return read_list(read, rule.substr(1, rule.size() - 2));
  if (rule.starts_with("zipf:")) return read_zipf(read, rule);
  if (rule.starts_with("uniform:")) return read_uniform(read, rule);
  std::vector<std::int32_t> lengths;
  for (const std::string_view part : read.fields(rule, '+', 0, "")) {
    const auto factors = read.fields(part, 'x', 2, "COUNTxLENGTH");
    const auto count = read.number(factors[0], "a count", 0,
                                   kMaxRequests - static_cast<std::int64_t>(lengths.size()));
    const auto length =
        static_cast<std::int32_t>(read.number(factors[1], "a length", 0, kMaxLength));
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
  }
  return lengths;
}

}  // namespace heddle
