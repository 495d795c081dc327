#include "tools/key_ranges.h"

#include <algorithm>
#include <functional>

#include "tools/random.h"

namespace heddle::tools {
namespace {

struct Range {
  std::int64_t begin, end;
};

// What a row at q_pos sees. Positions in front of the first key see nothing, whatever the rule.
using Rule = std::function<Range(std::int64_t q_pos)>;

void add_request(KeyRanges& ranges, std::int32_t qo_len, std::int32_t kv_len, const Rule& rule) {
  for (std::int64_t q_pos = std::int64_t{kv_len} - qo_len; q_pos < kv_len; ++q_pos) {
    const Range range = q_pos < 0 ? Range{0, 0} : rule(q_pos);
    ranges.add(range.begin, std::min<std::int64_t>(range.end, kv_len));
  }
}

// Pieces of `length` keys.
Rule pieces(int length) {
  return [length](std::int64_t q_pos) { return Range{q_pos / length * length, (q_pos / length + 1) * length}; };
}

Rule prefix(std::int64_t keys) {
  return [keys](std::int64_t q_pos) { return Range{0, std::max(q_pos + 1, keys)}; };
}

// Documents of random lengths.
Rule random_documents(Random& random, std::int32_t kv_len) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 0; end < kv_len;) ends.push_back(end += 1 + random.below(200));
  return [ends](std::int64_t q_pos) {
    const auto own = std::upper_bound(ends.begin(), ends.end(), q_pos);
    return Range{own == ends.begin() ? 0 : own[-1], *own};
  };
}

// Causal text with a span in it that sees itself in both directions.
Rule random_span(Random& random, std::int32_t kv_len) {
  const int begin = random.below(kv_len + 1), end = begin + random.below(100);
  return [begin, end](std::int64_t q_pos) {
    return Range{0, q_pos >= begin && q_pos < end ? std::int64_t{end} : q_pos + 1};
  };
}

Rule random_rule(Random& random, std::int32_t kv_len) {
  switch (random.below(7)) {
    case 0: return random_documents(random, kv_len);
    case 1: return prefix(random.below(kv_len + 1));
    case 2: return random_span(random, kv_len);
    case 3: return pieces(1 + random.below(150));
    case 4:
      return [&random, kv_len](std::int64_t) { return Range{random.below(kv_len + 1), random.below(kv_len + 1)}; };
    case 5: return [kv_len](std::int64_t) { return Range{0, kv_len}; };
    default: return [kv_len](std::int64_t) { return Range{kv_len + 5, -3}; };
  }
}

}  // namespace

void KeyRanges::append(const KeyRanges& others) {
  first.insert(first.end(), others.first.begin(), others.first.end());
  end.insert(end.end(), others.end.begin(), others.end.end());
}

KeyRanges KeyRanges::part(std::size_t begin, std::size_t count) const {
  if (first.empty()) return {};
  const auto of = [&](const std::vector<std::int32_t>& keys) {
    const auto from = keys.begin() + std::ptrdiff_t(begin);
    return std::vector<std::int32_t>(from, from + std::ptrdiff_t(count));
  };
  return {of(first), of(end)};
}

KeyRanges document_ranges(std::span<const std::int32_t> qo_lens, std::span<const std::int32_t> kv_lens, int length) {
  KeyRanges ranges;
  for (std::size_t r = 0; r < qo_lens.size(); ++r) add_request(ranges, qo_lens[r], kv_lens[r], pieces(length));
  return ranges;
}

KeyRanges prefix_ranges(std::span<const std::int32_t> qo_lens, std::span<const std::int32_t> kv_lens, int keys) {
  KeyRanges ranges;
  for (std::size_t r = 0; r < qo_lens.size(); ++r) add_request(ranges, qo_lens[r], kv_lens[r], prefix(keys));
  return ranges;
}

KeyRanges random_key_ranges(const Variant& variant, std::uint64_t seed, std::span<const std::int32_t> qo_lens,
                            std::span<const std::int32_t> kv_lens) {
  KeyRanges ranges;
  if (!variant.mask.rows_given) return ranges;
  Random random(seed);
  for (std::size_t r = 0; r < qo_lens.size(); ++r) {
    const std::size_t begin = ranges.first.size();
    add_request(ranges, qo_lens[r], kv_lens[r], random_rule(random, kv_lens[r]));
    if (qo_lens[r] > 1 && random.below(3) == 0) {
      const std::size_t row = begin + std::size_t(random.below(qo_lens[r]));
      ranges.first[row] = ranges.end[row] = 0;
    }
  }
  return ranges;
}

}  // namespace heddle::tools
