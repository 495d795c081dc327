#include "tools/bench_data.h"

#include <algorithm>

#include "tools/random.h"

namespace heddle::tools {
namespace {

constexpr std::size_t kBlockElements = 33554393;  // odd; 64 MiB are past the L2
constexpr std::size_t kLongestRow = 1024;         // the block's beginning once more behind its end

}  // namespace

BenchData::BenchData(const Engine& engine, const Workload& workload) : w_(workload) {
  make_lengths();
  block_.resize(kBlockElements);
  NormalSource(DType::bf16, 11).fill(block_.data(), block_.size());
  block_on_device_ = DeviceMemory(engine, block_.size() * 2);
  block_on_device_.write(0, std::as_bytes(std::span(block_)));
  block_.insert(block_.end(), block_.begin(), block_.begin() + kLongestRow);

  const std::size_t q_elements =
      std::size_t(w_.num_qo_rows()) * w_.heads.num_qo_heads * w_.heads.head_dim;
  const std::size_t kv_elements = std::size_t(num_pages_) * std::max(w_.page_size, 1) *
                                  w_.heads.num_kv_heads * w_.heads.head_dim;
  q_ = fill(engine, q_elements);
  for (int layer = 0; layer < w_.layers(); ++layer) {
    k_.push_back(fill(engine, kv_elements));
    v_.push_back(fill(engine, kv_elements));
  }
  o_ = DeviceMemory(engine, q_elements * 2);
  const std::vector<std::uint16_t> unwritten(q_elements, kHalfNan);
  o_.write(0, std::as_bytes(std::span(unwritten)));
  indices_ = DeviceMemory(engine, page_order_.size() * 4);
  indices_.write(0, std::as_bytes(std::span(page_order_)));
}

void BenchData::make_lengths() {
  qo_indptr_ = kv_indptr_ = {0};
  for (std::size_t r = 0; r < w_.qo_lens.size(); ++r) {
    const std::int32_t kv_len = w_.kv_lens[r], page_size = w_.page_size;
    qo_indptr_.push_back(qo_indptr_.back() + w_.qo_lens[r]);
    kv_indptr_.push_back(kv_indptr_.back() +
                         (page_size ? (kv_len + page_size - 1) / page_size : kv_len));
    if (page_size) last_page_len_.push_back(kv_len ? (kv_len - 1) % page_size + 1 : 0);
  }
  num_pages_ = kv_indptr_.back();
  page_order_.resize(std::size_t(num_pages_));
  for (std::int32_t i = 0; i < num_pages_; ++i) page_order_[i] = i;
  Random random(5);
  for (std::int32_t i = std::int32_t(num_pages_) - 1; w_.page_size && i > 0; --i) {
    std::swap(page_order_[i], page_order_[random.below(i + 1)]);
  }
}

BenchData::Filled BenchData::fill(const Engine& engine, std::size_t elements) {
  Filled filled{DeviceMemory(engine, elements * 2), next_start_};
  next_start_ = (next_start_ + 7654321) % kBlockElements;
  std::size_t from = filled.start;
  for (std::size_t at = 0; at < elements;) {
    const std::size_t count = std::min(kBlockElements - from, elements - at);
    filled.memory.copy_from(block_on_device_, from * 2, at * 2, count * 2);
    at += count;
    from = 0;
  }
  return filled;
}

Batch BenchData::batch() const {
  return {.qo_indptr = qo_indptr_, .kv_indptr = kv_indptr_, .last_page_len = last_page_len_};
}

Tensors BenchData::tensors(int layer) const {
  const std::int64_t rows = w_.num_qo_rows(), heads = w_.heads.num_kv_heads,
                     dim = w_.heads.head_dim;
  const auto kv = [&](const Filled& filled) {
    return w_.page_size ? tensor_of(filled.memory.data(), DType::bf16,
                                    {num_pages_, w_.page_size, heads, dim})
                        : tensor_of(filled.memory.data(), DType::bf16, {num_pages_, heads, dim});
  };
  return {.q = tensor_of(q_.memory.data(), DType::bf16, {rows, w_.heads.num_qo_heads, dim}),
          .k = kv(k_[layer]),
          .v = kv(v_[layer]),
          .o = tensor_of(o_.data(), DType::bf16, {rows, w_.heads.num_qo_heads, dim}),
          .kv_indices = w_.page_size ? static_cast<const std::int32_t*>(indices_.data()) : nullptr};
}

const std::uint16_t* BenchData::row_of(const Filled& filled, std::size_t element) const {
  return block_.data() + (filled.start + element) % kBlockElements;
}

const std::uint16_t* BenchData::q_row(int request, int row, int qo_head) const {
  const std::size_t index =
      (std::size_t(qo_indptr_[request]) + row) * w_.heads.num_qo_heads + qo_head;
  return row_of(q_, index * w_.heads.head_dim);
}

std::size_t BenchData::kv_element(int request, int kv_pos, int kv_head) const {
  const int rows_per_page = std::max(w_.page_size, 1);
  const std::size_t page = page_order_[kv_indptr_[request] + kv_pos / rows_per_page];
  const std::size_t row = page * rows_per_page + kv_pos % rows_per_page;
  return (row * w_.heads.num_kv_heads + kv_head) * w_.heads.head_dim;
}

const std::uint16_t* BenchData::k_row(int request, int kv_pos, int kv_head) const {
  return row_of(k_[0], kv_element(request, kv_pos, kv_head));
}

const std::uint16_t* BenchData::v_row(int request, int kv_pos, int kv_head) const {
  return row_of(v_[0], kv_element(request, kv_pos, kv_head));
}

std::vector<std::uint16_t> BenchData::read_output(int request, int row) const {
  std::vector<std::uint16_t> output(std::size_t(w_.heads.num_qo_heads) * w_.heads.head_dim);
  o_.read((std::size_t(qo_indptr_[request]) + row) * output.size() * 2,
          std::as_writable_bytes(std::span(output)));
  return output;
}

}  // namespace heddle::tools
