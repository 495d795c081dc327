#include "tools/kv_cache.h"

#include <algorithm>

#include "engine/error.h"

namespace heddle::tools {

KvCache::KvCache(const Engine& engine, const KvShape& shape, int num_layers, int num_pages,
                 std::uint64_t seed)
    : shape_(shape),
      num_pages_(num_pages),
      values_(shape.dtype, seed),
      k_(num_layers),
      v_(num_layers) {
  for (std::vector<Pool>* pools : {&k_, &v_}) {
    for (Pool& pool : *pools) {
      pool.dim = pools == &k_ ? shape.head_dim : shape.vo_dim();
      const std::size_t elements = std::size_t(num_pages) * page_elements(pool);
      pool.host.assign(elements, kHalfNan);
      pool.device =
          DeviceMemory(engine, std::max<std::size_t>(elements, 8) * sizeof(std::uint16_t));
    }
  }
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(page);
  Random random(seed + 1);
  for (int i = num_pages - 1; shape.page_size > 0 && i > 0; --i)
    std::swap(free_[i], free_[random.below(i + 1)]);
  dirty_.assign(num_pages, 1);
}

std::int64_t KvCache::page_elements(const Pool& pool) const {
  return std::int64_t(rows_per_page()) * shape_.num_kv_heads * pool.dim;
}

void KvCache::append(int request, int tokens) {
  Request& r = requests_[request];
  for (int i = 0; i < tokens; ++i) {
    if (r.kv_len == int(r.pages.size()) * rows_per_page()) {
      if (free_.empty()) {
        fail(ErrorKind::invalid_argument,
             "The KV cache of {} pages is full; request {} needs another.", num_pages_, request);
      }
      r.pages.push_back(free_.back());
      free_.pop_back();
    }
    fill_row(request, r.kv_len++);
  }
}

void KvCache::release(int request) {
  for (std::int32_t page : requests_[request].pages) {
    poison(page);
    free_.insert(free_.begin(), page);
  }
  requests_.erase(request);
}

void KvCache::fill_row(int request, int kv_pos) {
  dirty_[requests_[request].pages[kv_pos / rows_per_page()]] = 1;
  for (std::vector<Pool>* pools : {&k_, &v_}) {
    for (Pool& pool : *pools) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        values_.fill(pool.host.data() + row_index(request, kv_pos, head) * pool.dim, pool.dim);
      }
    }
  }
}

void KvCache::poison(int page) {
  dirty_[page] = 1;
  for (std::vector<Pool>* pools : {&k_, &v_}) {
    for (Pool& pool : *pools) {
      std::fill_n(pool.host.begin() + page * page_elements(pool), page_elements(pool), kHalfNan);
    }
  }
}

void KvCache::upload() {
  // Runs of changed pages go in one copy each.
  for (int begin = 0; begin < num_pages_; ++begin) {
    int end = begin;
    while (end < num_pages_ && dirty_[end]) dirty_[end++] = 0;
    if (end == begin) continue;
    for (std::vector<Pool>* pools : {&k_, &v_}) {
      for (Pool& pool : *pools) {
        const std::size_t first = std::size_t(begin) * page_elements(pool);
        const std::size_t count = std::size_t(end - begin) * page_elements(pool);
        pool.device.write(first * 2, std::as_bytes(std::span(pool.host).subspan(first, count)));
      }
    }
    begin = end;
  }
}

int KvCache::kv_len(int request) const {
  const auto found = requests_.find(request);
  return found == requests_.end() ? 0 : found->second.kv_len;
}

const std::vector<std::int32_t>& KvCache::pages_of(int request) const {
  static const std::vector<std::int32_t> none;
  const auto found = requests_.find(request);
  return found == requests_.end() ? none : found->second.pages;
}

std::int64_t KvCache::row_index(int request, int kv_pos, int kv_head) const {
  const std::int64_t page = pages_of(request)[kv_pos / rows_per_page()],
                     row = kv_pos % rows_per_page();
  const std::int64_t in_page = shape_.layout == KvLayout::NHD
                                   ? row * shape_.num_kv_heads + kv_head
                                   : kv_head * std::int64_t(rows_per_page()) + row;
  return page * rows_per_page() * shape_.num_kv_heads + in_page;
}

Tensor KvCache::tensor(const Pool& pool) const {
  const std::int64_t heads = shape_.num_kv_heads, dim = pool.dim;
  if (shape_.page_size == 0)
    return tensor_of(pool.device.data(), shape_.dtype, {num_pages_, heads, dim});
  if (shape_.layout == KvLayout::NHD) {
    return tensor_of(pool.device.data(), shape_.dtype, {num_pages_, shape_.page_size, heads, dim});
  }
  return tensor_of(pool.device.data(), shape_.dtype, {num_pages_, heads, shape_.page_size, dim});
}

}  // namespace heddle::tools
