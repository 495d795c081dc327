// Any bytes as a cache entry. An input whose first byte is odd gets the right checksum, so that
// what is behind it is tried too. What is accepted must be what write_entry() makes of it.
#include <cstring>
#include <string>

#include "runtime/cache_entry.h"
#include "runtime/hash.h"
#include "tests/fuzz.h"

using namespace heddle;
using heddle_tests::promise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 + sizeof(Hash128)) return 0;
  std::string bytes(heddle_tests::text_of(data + 1, size - 1));
  if (data[0] & 1) {
    const Hash128 checksum =
        hash_bytes(std::string_view(bytes).substr(0, bytes.size() - sizeof(Hash128)));
    std::memcpy(bytes.data() + bytes.size() - sizeof checksum, &checksum, sizeof checksum);
  }
  const std::optional<EntryFront> front = read_entry_front(bytes);
  if (!front) {
    promise(!read_entry(bytes, "key text"), "an entry without a front is none");
    return 0;
  }
  const EntryHeader& h = front->header;
  promise(front->name.size() == h.name_bytes && front->arch.size() == h.arch_bytes,
          "a front is as long as it says");
  if (const std::optional<Artifact> artifact = read_entry(bytes, "key text")) {
    std::string again = write_entry(front->name, front->arch, "key text", *artifact);
    promise(again.size() == bytes.size(), "an entry is as long as its parts");
    std::memcpy(again.data() + offsetof(EntryHeader, padding),
                bytes.data() + offsetof(EntryHeader, padding), sizeof h.padding);
    promise(again.substr(0, again.size() - sizeof(Hash128)) ==
                bytes.substr(0, bytes.size() - sizeof(Hash128)),
            "an entry is what was written");
  }
  return 0;
}
