// The one hash of the program: XXH3-128, for cache keys and the checksums of cache entries.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace heddle {

struct Hash128 {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  bool operator==(const Hash128&) const = default;
};

// 32 lower-case hexadecimal digits, the high word first.
std::string hex(Hash128 hash);

Hash128 hash_bytes(std::string_view bytes);

// Each field counts with its length, so {"ab", "c"} and {"a", "bc"} differ.
Hash128 hash_fields(std::initializer_list<std::string_view> fields);

}  // namespace heddle
