#include "tests/append_case.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tests/draw.h"
#include "tools/half.h"

namespace heddle_tests {

using namespace heddle;
using tools::DeviceMemory;
using tools::Random;

std::string AppendShape::describe() const {
  return fmt::format("{} {} append_kv {} heads {},{},{},{} page {} {} qo [{}] kv [{}]", config.variant, name_of(config.kv_dtype),
                     name_of(config.append_kv), config.num_qo_heads, config.num_kv_heads, config.head_dim, config.vo_dim(),
                     config.page_size, layout == KvLayout::NHD ? "NHD" : "HND", fmt::join(qo_lens, ","),
                     fmt::join(kv_lens, ","));
}

AppendCase::AppendCase(const Engine& engine, const AppendShape& shape, std::uint64_t seed) : shape_(shape) {
  const AttentionConfig& c = shape_.config;
  Random random(seed);
  set_lengths();
  num_pages_ = kv_indptr_.back() + 2;
  for (int i = 0; i < num_pages_; ++i) kv_indices_.push_back(i);
  for (std::size_t i = kv_indices_.size() - 1; c.page_size && i > 0; --i)
    std::swap(kv_indices_[i], kv_indices_[random.below(int(i) + 1)]);
  indices_ = upload(engine, kv_indices_);

  const int heads = c.num_qo_heads + 2 * c.num_kv_heads;
  const std::int64_t rows = qo_indptr_.back() + 1, widest = std::max(c.head_dim, c.vo_dim());
  if (random.below(2)) {
    new_head_ = widest, new_row_ = spread(random, new_head_ * heads);
    new_host_.resize(new_row_ * rows);
  } else {
    new_row_ = spread(random, widest), new_head_ = spread(random, new_row_ * rows);
    new_host_.resize(new_head_ * heads);
  }
  tools::NormalSource(c.kv_dtype, seed + 1).fill(new_host_.data(), new_host_.size());
  new_ = upload(engine, new_host_);
  for (Pool* pool : {&k_, &v_}) {
    pool->dim = pool == &k_ ? c.head_dim : c.vo_dim();
    lay_out(*pool, random);
    pool->before.resize(num_pages_ * pool->page);
    for (std::uint16_t& slot : pool->before) slot = std::uint16_t(random.bits());
    pool->memory = upload(engine, pool->before);
  }
}

void AppendCase::set_lengths() {
  const int page = std::max(1, shape_.config.page_size);
  qo_indptr_ = kv_indptr_ = {0};
  last_page_len_.clear();
  for (std::size_t r = 0; r < shape_.kv_lens.size(); ++r) {
    const int kv = shape_.kv_lens[r], pages = (kv + page - 1) / page;
    qo_indptr_.push_back(qo_indptr_.back() + shape_.qo_lens[r]);
    kv_indptr_.push_back(kv_indptr_.back() + pages);
    last_page_len_.push_back(kv == 0 ? 0 : kv - (pages - 1) * page);
  }
}

void AppendCase::take(const std::vector<int>& qo_lens, const std::vector<int>& kv_lens) {
  shape_.qo_lens = qo_lens, shape_.kv_lens = kv_lens;
  set_lengths();
}

void AppendCase::lay_out(Pool& pool, Random& random) {
  const AttentionConfig& c = shape_.config;
  if (c.page_size && shape_.layout == KvLayout::HND) {
    pool.row = spread(random, pool.dim), pool.head = spread(random, pool.row * c.page_size);
    pool.page = spread(random, pool.head * c.num_kv_heads);
  } else {
    pool.head = spread(random, pool.dim), pool.row = spread(random, pool.head * c.num_kv_heads);
    pool.page = c.page_size ? spread(random, pool.row * c.page_size) : pool.row;
  }
}

Batch AppendCase::batch() const {
  if (shape_.config.page_size == 0) return {qo_indptr_, kv_indptr_};
  return {qo_indptr_, kv_indptr_, last_page_len_};
}

Maxima AppendCase::maxima() const {
  std::int64_t keys = 1;
  for (const int kv : shape_.kv_lens) keys += kv;
  return {.max_requests = int(shape_.kv_lens.size()), .max_qo_rows = qo_indptr_.back() + 1, .max_kv_tokens = keys};
}

Tensor AppendCase::new_rows(int first_head, int dim) const {
  const AttentionConfig& c = shape_.config;
  return {static_cast<std::uint16_t*>(new_.data()) + first_head * new_head_, c.kv_dtype, 3,
          {qo_indptr_.back(), c.num_kv_heads, dim}, {new_row_, new_head_, 1}};
}

Tensor AppendCase::tensor(const Pool& pool) const {
  const AttentionConfig& c = shape_.config;
  Tensor t{.data = pool.memory.data(), .dtype = c.kv_dtype, .rank = 3};
  if (c.page_size == 0) {
    t.shape = {num_pages_, c.num_kv_heads, pool.dim}, t.strides = {pool.row, pool.head, 1};
    return t;
  }
  t.rank = 4;
  if (shape_.layout == KvLayout::NHD)
    t.shape = {num_pages_, c.page_size, c.num_kv_heads, pool.dim}, t.strides = {pool.page, pool.row, pool.head, 1};
  else
    t.shape = {num_pages_, c.num_kv_heads, c.page_size, pool.dim}, t.strides = {pool.page, pool.head, pool.row, 1};
  return t;
}

AppendTensors AppendCase::tensors() const {
  const AttentionConfig& c = shape_.config;
  AppendTensors t{.new_k = new_rows(c.num_qo_heads, c.head_dim),
                  .new_v = new_rows(c.num_qo_heads + c.num_kv_heads, c.vo_dim()), .k = tensor(k_), .v = tensor(v_),
                  .layout = c.page_size ? shape_.layout : KvLayout::NHD};
  if (c.page_size) t.kv_indices = static_cast<const std::int32_t*>(indices_.data());
  return t;
}

void AppendCase::reset() {
  for (Pool* pool : {&k_, &v_}) pool->memory.write(0, std::as_bytes(std::span(pool->before)));
}

std::vector<std::uint16_t> AppendCase::bits(const Pool& pool) const {
  std::vector<std::uint16_t> bits(pool.before.size());
  pool.memory.read(0, std::as_writable_bytes(std::span(bits)));
  return bits;
}

std::string AppendCase::verdict(const Turn& key, const Turn& value, double allowed) const {
  const AttentionConfig& c = shape_.config;
  const std::string k = verdict_of("k", k_, c.num_qo_heads, key, allowed);
  return k.empty() ? verdict_of("v", v_, c.num_qo_heads + c.num_kv_heads, value, allowed) : k;
}

// The rows where the definition puts them, one after the other; then all else must be as it was.
std::string AppendCase::verdict_of(const char* name, const Pool& pool, int first_head, const Turn& turn, double allowed) const {
  const AttentionConfig& c = shape_.config;
  std::vector<std::uint16_t> found = bits(pool);
  for (std::size_t r = 0; r < shape_.qo_lens.size(); ++r) {
    for (int i = 0; i < shape_.qo_lens[r] * c.num_kv_heads; ++i) {
      const int row = i / c.num_kv_heads, head = i % c.num_kv_heads;
      const int kv_pos = shape_.kv_lens[r] - shape_.qo_lens[r] + row;
      const std::uint16_t* from = new_host_.data() + (qo_indptr_[r] + row) * new_row_ + (first_head + head) * new_head_;
      const std::int64_t entry = kv_indptr_[r] + (c.page_size ? kv_pos / c.page_size : kv_pos);
      const std::int64_t place = c.page_size ? kv_indices_[entry] * pool.page + kv_pos % c.page_size * pool.row : entry * pool.row;
      std::uint16_t* to = found.data() + place + head * pool.head;
      std::vector<double> exact(from, from + pool.dim);
      for (int d = 0; d < pool.dim; ++d) exact[d] = tools::to_float(from[d], c.kv_dtype);
      if (turn) exact = turn(exact, kv_pos);
      for (int d = 0; d < pool.dim; ++d) {
        const double error = std::abs(tools::to_float(to[d], c.kv_dtype) - exact[d]);
        const double rounding = std::abs(exact[d]) * (c.kv_dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
        if (turn ? !(error <= rounding + allowed * std::max(1.0, std::abs(exact[d]))) : to[d] != from[d])
          return fmt::format("{}: request {} position {} head {} column {} holds {}, and not {}", name, r, kv_pos, head, d,
                             tools::to_float(to[d], c.kv_dtype), exact[d]);
        to[d] = pool.before[to + d - found.data()];
      }
    }
  }
  const auto at = std::mismatch(found.begin(), found.end(), pool.before.begin()).first;
  return at == found.end() ? "" : fmt::format("{}: element {} of the pool was written", name, at - found.begin());
}

AppendShape random_append(Random& random, const AttentionConfig& config) {
  AppendShape shape{.config = config, .layout = random.below(2) ? KvLayout::HND : KvLayout::NHD};
  const int requests = 1 + random.below(7), longest = config.max_qo_len ? config.max_qo_len : random.below(2) ? 5 : 150;
  for (int r = 0; r < requests; ++r) {
    const int qo = random.below(4) ? random.below(longest + 1) : 1;
    shape.qo_lens.push_back(qo);
    shape.kv_lens.push_back(qo + (random.below(3) ? random.below(400) : 0));
  }
  return shape;
}

}  // namespace heddle_tests
