#include "tools/bench_pages.h"

#include <algorithm>
#include <numeric>

#include "tools/random.h"

namespace heddle::tools {
namespace {

std::vector<std::int32_t> shuffled(std::int32_t count, Random& random) {
  std::vector<std::int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (std::int32_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// Numbers in the order in which they are first used; returns how many there are.
std::int32_t number_pages(const Workload& w, const LengthsOnly& lengths, std::vector<std::int32_t>& ids) {
  std::int32_t next = 0;
  for (std::size_t r = 0; r < w.kv_lens.size(); ++r) {
    std::int32_t i = lengths.kv_indptr[r];
    for (const SharedLevel& level : w.shared) {
      const bool is_first = r % std::size_t(level.requests) == 0;
      const std::int32_t end = i + level.keys / w.page_size, back = i - lengths.kv_indptr[r];
      for (std::int32_t of_last = is_first ? 0 : lengths.kv_indptr[r - 1] + back; i < end; ++i, ++of_last)
        ids[i] = is_first ? next++ : ids[of_last];
    }
    while (i < lengths.kv_indptr[r + 1]) ids[i++] = next++;
  }
  return next;
}

// Each request's pages are different ones, in rising order.
void draw_pages(const LengthsOnly& lengths, std::int32_t pool, std::vector<std::int32_t>& ids) {
  Random random(6);
  for (std::size_t r = 0; r + 1 < lengths.kv_indptr.size(); ++r) {
    const std::vector<std::int32_t> drawn = shuffled(pool, random);
    const auto begin = ids.begin() + lengths.kv_indptr[r], end = ids.begin() + lengths.kv_indptr[r + 1];
    std::copy_n(drawn.begin(), end - begin, begin);
    std::sort(begin, end);
  }
}

}  // namespace

PageTable page_table(const Workload& w, const LengthsOnly& lengths) {
  PageTable table{.ids = std::vector<std::int32_t>(lengths.kv_indptr.back())};
  if (w.pool_keys > 0) {
    table.num_pages = w.pool_keys / w.page_size;
    draw_pages(lengths, std::int32_t(table.num_pages), table.ids);
    return table;
  }
  const std::int32_t count = number_pages(w, lengths, table.ids);
  table.num_pages = count;
  if (w.page_size == 0) return table;
  Random random(5);
  const std::vector<std::int32_t> order = shuffled(count, random);
  for (std::int32_t& id : table.ids) id = order[id];
  return table;
}

}  // namespace heddle::tools
