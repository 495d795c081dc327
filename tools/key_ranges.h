// Ranges of keys for the rows of a batch, as a mask with "rows": "given" asks for them (Batch::first_keys).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace heddle::tools {

// Row i of the batch sees keys [first[i], end[i]) of its request.
struct KeyRanges {
  std::vector<std::int32_t> first, end;

  void add(std::int64_t begin, std::int64_t behind) {
    first.push_back(static_cast<std::int32_t>(begin));
    end.push_back(static_cast<std::int32_t>(behind));
  }
  void append(const KeyRanges& others);
  // Those of rows [begin, begin + count); none of none.
  KeyRanges part(std::size_t begin, std::size_t count) const;
  void give(Batch& batch) const { batch.first_keys = first, batch.end_keys = end; }
};

// Documents of `length` keys, one behind the other from each request's first key on: a row sees those of its own.
KeyRanges document_ranges(std::span<const std::int32_t> qo_lens, std::span<const std::int32_t> kv_lens, int length);

// A row sees the keys up to its own, and all of the first `prefix`.
KeyRanges prefix_ranges(std::span<const std::int32_t> qo_lens, std::span<const std::int32_t> kv_lens, int prefix);

// Each request's of another kind: documents, a prefix, spans, chunks, any two ends, everything, nothing; here and there
// a row that sees nothing. None for a variant that does not ask.
KeyRanges random_key_ranges(const Variant& variant, std::uint64_t seed, std::span<const std::int32_t> qo_lens,
                            std::span<const std::int32_t> kv_lens);

}  // namespace heddle::tools
