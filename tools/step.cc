#include "tools/step.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace heddle::tools {

StepBatch::StepBatch(const KvCache& cache, const std::vector<StepRequest>& step)
    : requests(step), qo_indptr{0}, kv_indptr{0} {
  const int page_size = cache.shape().page_size;
  for (const StepRequest& r : requests) {
    qo_indptr.push_back(qo_indptr.back() + r.qo_len);
    const std::vector<std::int32_t>& pages = cache.pages_of(r.request);
    kv_indptr.push_back(kv_indptr.back() + std::int32_t(pages.size()));
    if (page_size == 0) continue;
    kv_indices.insert(kv_indices.end(), pages.begin(), pages.end());
    const int kv_len = cache.kv_len(r.request);
    last_page_len.push_back(kv_len == 0 ? 0 : (kv_len - 1) % page_size + 1);
  }
}

Batch StepBatch::batch() const {
  Batch batch{.qo_indptr = qo_indptr, .kv_indptr = kv_indptr, .last_page_len = last_page_len};
  ranges.give(batch);
  return batch;
}

std::int64_t StepBatch::num_kv_tokens(const KvCache& cache) const {
  std::int64_t sum = 0;
  for (const StepRequest& r : requests) sum += cache.kv_len(r.request);
  return sum;
}

QuerySide::QuerySide(const Engine& engine, int max_rows, int num_qo_heads, int head_dim,
                     DType dtype, std::uint64_t seed, int head_dim_vo)
    : max_rows_(std::max(max_rows, 1)),
      num_qo_heads_(num_qo_heads),
      head_dim_(head_dim),
      head_dim_vo_(head_dim_vo != 0 ? head_dim_vo : head_dim),
      dtype_(dtype),
      values_(dtype, seed),
      q_host_(std::size_t(max_rows_ * q_elements())),
      q_(engine, q_host_.size() * 2),
      o_(engine, std::size_t(max_rows_ * o_elements()) * 2),
      lse_(engine, std::size_t(max_rows_) * num_qo_heads * 4) {}

void QuerySide::refill(int rows) {
  const std::size_t used = std::size_t(rows * q_elements());
  values_.fill(q_host_.data(), used);
  std::fill(q_host_.begin() + std::ptrdiff_t(used), q_host_.end(), kHalfNan);
  q_.write(0, std::as_bytes(std::span(q_host_)));
  const std::vector<std::uint16_t> poison(o_.bytes() / 2, kHalfNan);
  o_.write(0, std::as_bytes(std::span(poison)));
  const std::vector<float> no_lse(lse_.bytes() / 4, std::numeric_limits<float>::quiet_NaN());
  lse_.write(0, std::as_bytes(std::span(no_lse)));
}

void QuerySide::set_rows(int row, std::span<const std::uint16_t> values) {
  const std::size_t begin = std::size_t(row * q_elements());
  std::copy(values.begin(), values.end(), q_host_.begin() + std::ptrdiff_t(begin));
  q_.write(begin * 2, std::as_bytes(values));
}

Tensor QuerySide::q() const {
  return tensor_of(q_.data(), dtype_, {max_rows_, num_qo_heads_, head_dim_});
}
Tensor QuerySide::o() const {
  return tensor_of(o_.data(), dtype_, {max_rows_, num_qo_heads_, head_dim_vo_});
}
Tensor QuerySide::lse() const {
  return tensor_of(lse_.data(), DType::f32, {max_rows_, num_qo_heads_});
}

std::vector<double> QuerySide::read_o(int rows) const {
  std::vector<std::uint16_t> bits(std::size_t(rows * o_elements()));
  o_.read(0, std::as_writable_bytes(std::span(bits)));
  std::vector<double> values;
  for (std::uint16_t b : bits) values.push_back(to_float(b, dtype_));
  return values;
}

std::vector<double> QuerySide::read_lse(int rows) const {
  std::vector<float> values(std::size_t(rows) * num_qo_heads_);
  lse_.read(0, std::as_writable_bytes(std::span(values)));
  return {values.begin(), values.end()};
}

bool QuerySide::rest_untouched(int rows) const {
  std::vector<std::uint16_t> o(std::size_t((max_rows_ - rows) * o_elements()));
  o_.read(std::size_t(rows * o_elements()) * 2, std::as_writable_bytes(std::span(o)));
  std::vector<float> lse(std::size_t(max_rows_ - rows) * num_qo_heads_);
  lse_.read(std::size_t(rows) * num_qo_heads_ * 4, std::as_writable_bytes(std::span(lse)));
  return std::all_of(o.begin(), o.end(), [](std::uint16_t b) { return b == kHalfNan; }) &&
         std::all_of(lse.begin(), lse.end(), [](float v) { return std::isnan(v); });
}

}  // namespace heddle::tools
