#include "runtime/cache_entry.h"

#include <cstring>

#include "runtime/hash.h"

namespace heddle {

namespace {

constexpr std::size_t kChecksumBytes = sizeof(Hash128);
// No section of an honest entry is larger; keeps the sum of damaged sizes from wrapping round.
constexpr std::uint64_t kMaxSectionBytes = std::uint64_t{1} << 32;

bool is_sound(const EntryHeader& h) {
  return std::memcmp(h.magic, kEntryMagic, sizeof kEntryMagic) == 0 && h.version == kEntryVersion &&
         h.name_bytes < kMaxSectionBytes && h.arch_bytes < kMaxSectionBytes &&
         h.log_bytes < kMaxSectionBytes && h.key_text_bytes < kMaxSectionBytes &&
         h.image_bytes < kMaxSectionBytes;
}

std::optional<EntryHeader> read_header(std::string_view bytes) {
  EntryHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!is_sound(header)) return std::nullopt;
  return header;
}

}  // namespace

std::string write_entry(std::string_view name, std::string_view arch, std::string_view key_text,
                        const Artifact& artifact) {
  EntryHeader header{};
  std::memcpy(header.magic, kEntryMagic, sizeof kEntryMagic);
  header.version = kEntryVersion;
  header.registers = artifact.registers;
  header.shared_bytes = artifact.shared_bytes;
  header.spill_bytes = artifact.spill_bytes;
  header.stack_bytes = artifact.stack_bytes;
  header.compile_ms = artifact.compile_ms;
  header.name_bytes = name.size();
  header.arch_bytes = arch.size();
  header.log_bytes = artifact.log.size();
  header.key_text_bytes = key_text.size();
  header.image_bytes = artifact.image.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(name).append(arch).append(artifact.log).append(key_text).append(artifact.image);
  const Hash128 checksum = hash_bytes(bytes);
  return bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
}

std::optional<Artifact> read_entry(std::string_view bytes, std::string_view key_text) {
  const std::optional<EntryHeader> header = read_header(bytes);
  if (!header) return std::nullopt;
  const std::uint64_t sections = header->name_bytes + header->arch_bytes + header->log_bytes +
                                 header->key_text_bytes + header->image_bytes;
  if (bytes.size() != sizeof *header + sections + kChecksumBytes) return std::nullopt;
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  Hash128 checksum;
  std::memcpy(&checksum, bytes.data() + body.size(), sizeof checksum);
  if (hash_bytes(body) != checksum) return std::nullopt;
  std::size_t at = sizeof *header + header->name_bytes + header->arch_bytes;
  const auto next = [&](std::uint64_t size) {
    const std::string_view section = body.substr(at, size);
    at += size;
    return section;
  };
  Artifact artifact;
  artifact.log = next(header->log_bytes);
  if (next(header->key_text_bytes) != key_text) return std::nullopt;
  artifact.image = next(header->image_bytes);
  artifact.compile_ms = header->compile_ms;
  artifact.registers = header->registers;
  artifact.shared_bytes = header->shared_bytes;
  artifact.spill_bytes = header->spill_bytes;
  artifact.stack_bytes = header->stack_bytes;
  return artifact;
}

std::optional<EntryFront> read_entry_front(std::string_view bytes) {
  const std::optional<EntryHeader> header = read_header(bytes);
  if (!header || bytes.size() < sizeof *header + header->name_bytes + header->arch_bytes) {
    return std::nullopt;
  }
  EntryFront front{*header, {}, {}};
  front.name = bytes.substr(sizeof *header, header->name_bytes);
  front.arch = bytes.substr(sizeof *header + header->name_bytes, header->arch_bytes);
  return front;
}

}  // namespace heddle
