#include "tools/bench_data.h"

#include <algorithm>

#include "tools/random.h"

namespace heddle::tools {
namespace {

constexpr std::size_t kBlockElements = 33554393;  // odd; 64 MiB are past the L2
constexpr std::size_t kLongestRow = 1024;         // the block's beginning once more behind its end

}  // namespace

RandomBlock::RandomBlock(const Engine& engine, DType dtype)
    : values(kBlockElements), on_device(engine, kBlockElements * 2) {
  NormalSource(dtype, 11).fill(values.data(), values.size());
  on_device.write(0, std::as_bytes(std::span(values)));
  values.resize(kBlockElements + kLongestRow);
  std::copy_n(values.begin(), kLongestRow, values.begin() + kBlockElements);
}

const RandomBlock& RandomBlocks::of(DType dtype) {
  std::unique_ptr<const RandomBlock>& block = blocks_[dtype];
  if (!block) block = std::make_unique<const RandomBlock>(engine_, dtype);
  return *block;
}

BenchData::BenchData(RandomBlocks& blocks, const Workload& workload)
    : engine_(blocks.engine()),
      block_(blocks.of(workload.dtype)),
      w_(workload),
      lengths_(w_.qo_lens, w_.kv_lens, w_.page_size),
      pages_(page_table(w_, lengths_)) {
  const std::size_t q_rows = std::size_t(w_.num_qo_rows()) * w_.heads.num_qo_heads;
  const std::size_t kv_rows =
      std::size_t(pages_.num_pages) * std::max(w_.page_size, 1) * w_.heads.num_kv_heads;
  q_ = fill(q_rows * w_.heads.head_dim);
  for (int layer = 0; layer < w_.layers(); ++layer) {
    k_.push_back(fill(kv_rows * w_.heads.head_dim));
    v_.push_back(fill(kv_rows * w_.heads.vo_dim()));
  }
  o_ = DeviceMemory(engine_, q_rows * w_.heads.vo_dim() * 2);
  clear_output();
  indices_ = DeviceMemory(engine_, pages_.ids.size() * 4);
  indices_.write(0, std::as_bytes(std::span(pages_.ids)));
}

BenchData::Filled BenchData::fill(std::size_t elements) {
  Filled filled{DeviceMemory(engine_, elements * 2), next_start_};
  next_start_ = (next_start_ + 7654321) % kBlockElements;
  std::size_t from = filled.start;
  for (std::size_t at = 0; at < elements;) {
    const std::size_t count = std::min(kBlockElements - from, elements - at);
    filled.memory.copy_from(block_.on_device, from * 2, at * 2, count * 2);
    at += count;
    from = 0;
  }
  return filled;
}

Batch BenchData::first_requests(int count) const {
  Batch batch = lengths_.batch();
  batch.qo_indptr = batch.qo_indptr.first(count + 1);
  batch.kv_indptr = batch.kv_indptr.first(count + 1);
  if (w_.page_size) batch.last_page_len = batch.last_page_len.first(count);
  if (w_.share_prefixes) batch.kv_indices = pages_.ids;
  if (const std::size_t rows = std::size_t(batch.qo_indptr.back()); !w_.ranges.first.empty()) {
    batch.first_keys = std::span(w_.ranges.first).first(rows);
    batch.end_keys = std::span(w_.ranges.end).first(rows);
  }
  return batch;
}

Tensors BenchData::tensors(int layer) const {
  const std::int64_t rows = w_.num_qo_rows(), heads = w_.heads.num_kv_heads,
                     dim = w_.heads.head_dim, vo_dim = w_.heads.vo_dim();
  const auto kv = [&](const Filled& filled, std::int64_t dim) {
    return w_.page_size
               ? tensor_of(filled.memory.data(), w_.dtype, {pages_.num_pages, w_.page_size, heads, dim})
               : tensor_of(filled.memory.data(), w_.dtype, {pages_.num_pages, heads, dim});
  };
  return {.q = tensor_of(q_.memory.data(), w_.dtype, {rows, w_.heads.num_qo_heads, dim}),
          .k = kv(k_[layer], dim),
          .v = kv(v_[layer], vo_dim),
          .o = tensor_of(o_.data(), w_.dtype, {rows, w_.heads.num_qo_heads, vo_dim}),
          .kv_indices = w_.page_size ? static_cast<const std::int32_t*>(indices_.data()) : nullptr};
}

const std::uint16_t* BenchData::row_of(const Filled& filled, std::size_t element) const {
  return block_.values.data() + (filled.start + element) % kBlockElements;
}

const std::uint16_t* BenchData::q_row(int request, int row, int qo_head) const {
  const std::size_t index =
      (std::size_t(lengths_.qo_indptr[request]) + row) * w_.heads.num_qo_heads + qo_head;
  return row_of(q_, index * w_.heads.head_dim);
}

std::size_t BenchData::kv_index(int request, int kv_pos, int kv_head) const {
  const int rows_per_page = std::max(w_.page_size, 1);
  const std::size_t page = pages_.ids[lengths_.kv_indptr[request] + kv_pos / rows_per_page];
  const std::size_t row = page * rows_per_page + kv_pos % rows_per_page;
  return row * w_.heads.num_kv_heads + kv_head;
}

const std::uint16_t* BenchData::k_row(int request, int kv_pos, int kv_head) const {
  return row_of(k_[0], kv_index(request, kv_pos, kv_head) * w_.heads.head_dim);
}

const std::uint16_t* BenchData::v_row(int request, int kv_pos, int kv_head) const {
  return row_of(v_[0], kv_index(request, kv_pos, kv_head) * w_.heads.vo_dim());
}

std::vector<std::uint16_t> BenchData::read_output(int request, int row) const {
  std::vector<std::uint16_t> output(std::size_t(w_.heads.num_qo_heads) * w_.heads.vo_dim());
  o_.read((std::size_t(lengths_.qo_indptr[request]) + row) * output.size() * 2,
          std::as_writable_bytes(std::span(output)));
  return output;
}

void BenchData::clear_output() {
  const std::vector<std::uint16_t> unwritten(o_.bytes() / 2, kHalfNan);
  o_.write(0, std::as_bytes(std::span(unwritten)));
}

}  // namespace heddle::tools
