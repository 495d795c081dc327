// Inside the room only: one compiled kernel as the bytes of one file.
//
// An entry is
//
//   EntryHeader                     magic, format version, figures, the sizes of what follows
//   name, arch, log, key text, image   back to back, without padding or closing NUL
//   16 bytes                        XXH3-128 of everything before, low word first
//
// in the machine's byte order (another order fails the version check). The file's size must be
// exactly their sum. The key text is the whole input of the compile, the unit included: it is
// compared on a hit, so that two inputs of one hash are a miss, and it lets a person read what an
// entry was made from. The image stands last but one so that a listing reads the front only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/compiler.h"

namespace heddle {

inline constexpr char kEntryMagic[8] = {'h', 'e', 'd', 'd', 'l', 'e', '\r', '\n'};
inline constexpr std::uint32_t kEntryVersion = 1;

struct EntryHeader {
  char magic[8];
  std::uint32_t version;
  std::int32_t registers, shared_bytes, spill_bytes, stack_bytes;
  std::uint32_t padding;
  double compile_ms;
  std::uint64_t name_bytes, arch_bytes, log_bytes, key_text_bytes, image_bytes;
};
static_assert(sizeof(EntryHeader) == 80);

std::string write_entry(std::string_view name, std::string_view arch, std::string_view key_text,
                        const Artifact& artifact);

// nullopt where any byte is not as written, or the entry is of another key text.
std::optional<Artifact> read_entry(std::string_view bytes, std::string_view key_text);

// The front of an entry, unverified but within bounds; nullopt where it is none.
struct EntryFront {
  EntryHeader header;
  std::string name, arch;
};
std::optional<EntryFront> read_entry_front(std::string_view bytes);

}  // namespace heddle
