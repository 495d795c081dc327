#include "runtime/hash.h"

#include <array>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace heddle {

namespace {

Hash128 from(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

std::string hex(Hash128 hash) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = digits[(hash.hi >> (4 * i)) & 15];
    text[31 - i] = digits[(hash.lo >> (4 * i)) & 15];
  }
  return text;
}

Hash128 hash_bytes(std::string_view bytes) {
  return from(XXH3_128bits(bytes.data(), bytes.size()));
}

Hash128 hash_fields(std::initializer_list<std::string_view> fields) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (std::string_view field : fields) {
    std::array<unsigned char, 8> length;
    for (int i = 0; i < 8; ++i) {
      length[i] = static_cast<unsigned char>(std::uint64_t{field.size()} >> (8 * i));
    }
    XXH3_128bits_update(&state, length.data(), length.size());
    XXH3_128bits_update(&state, field.data(), field.size());
  }
  return from(XXH3_128bits_digest(&state));
}

}  // namespace heddle
