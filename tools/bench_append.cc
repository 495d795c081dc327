#include "tools/bench_append.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "runtime/driver.h"
#include "tools/bench_report.h"
#include "tools/device_memory.h"
#include "tools/host_timer.h"
#include "tools/lengths_only.h"
#include "tools/random.h"

namespace heddle::tools {
namespace {

constexpr int kKvHeads = 8, kHeadDim = 128, kPage = 16;
constexpr int kLayersOnGpu = 4;  // each on memory of its own, so that 8k tokens are not left in L2
constexpr int kSampledRows = 64;
constexpr double kTheta = 10000;  // rope's default

struct Shape {
  const char* name;
  const char* variant;
  AppendKv mode;
  std::vector<std::int32_t> qo_lens, kv_lens;
};

std::vector<Shape> shapes() {
  const std::vector<std::int32_t> prompt{8192}, ones(64, 1), keys(64, 1024);
  return {{"append_kv_8k", "softmax", AppendKv::copy, prompt, prompt},
          {"append_kv_64", "softmax", AppendKv::copy, ones, keys},
          {"append_kv_8k_rope", "rope", AppendKv::transform, prompt, prompt},
          {"append_kv_64_rope", "rope", AppendKv::transform, ones, keys}};
}

// One shape's layers on the device.
class AppendData {
 public:
  AppendData(Engine& engine, const Shape& shape)
      : shape_(shape),
        lengths_(shape.qo_lens, shape.kv_lens, kPage),
        attention_(engine.attention({.variant = shape.variant,
                                     .num_qo_heads = 4 * kKvHeads,
                                     .num_kv_heads = kKvHeads,
                                     .head_dim = kHeadDim,
                                     .page_size = kPage,
                                     .append_kv = shape.mode})),
        workspace_(attention_.workspace({.max_requests = int(shape.qo_lens.size()),
                                         .max_qo_rows = rows(),
                                         .max_kv_tokens = lengths_.kv_tokens})),
        source_(std::size_t(rows()) * kRow) {
    NormalSource(DType::bf16, 7).fill(source_.data(), source_.size());
    const int layers = engine.device().kind == DeviceKind::cuda ? kLayersOnGpu : 1;
    for (int i = 0; i < layers; ++i) add_layer(engine);
    for (std::int32_t i = 0; i < num_pages(); ++i) pages_.push_back(i);
    Random random(9);
    for (std::size_t i = pages_.size() - 1; i > 0; --i)
      std::swap(pages_[i], pages_[random.below(int(i) + 1)]);
    indices_ = DeviceMemory(engine, pages_.size() * 4);
    indices_.write(0, std::as_bytes(std::span(pages_)));
    attention_.plan(lengths_.batch(), workspace_);
  }

  void append(int layer, Stream stream) {
    const Layer& l = layers_[layer];
    const Tensor k = tensor_of(l.k.data(), DType::bf16, {num_pages(), kPage, kKvHeads, kHeadDim});
    const Tensor rows_k = tensor_of(l.new_k.data(), DType::bf16, {rows(), kKvHeads, kHeadDim});
    AppendTensors tensors{.new_k = rows_k, .new_v = rows_k, .k = k, .v = k};
    tensors.new_v.data = l.new_v.data(), tensors.v.data = l.v.data();
    tensors.kv_indices = static_cast<const std::int32_t*>(indices_.data());
    attention_.append_kv(workspace_, tensors, {}, stream);
  }

  // Sampled rows of layer 0; empty where they are right.
  std::string check() const {
    for (int i = 0; i < std::min(rows(), kSampledRows); ++i) {
      const int row = int(std::int64_t{rows() - 1} * i / std::max(1, std::min(rows(), kSampledRows) - 1));
      const int request = shape_.qo_lens.size() == 1 ? 0 : row;
      const int pos = shape_.kv_lens[request] - shape_.qo_lens[request] + row - lengths_.qo_indptr[request];
      const std::int64_t page = pages_[lengths_.kv_indptr[request] + pos / kPage];
      const std::size_t at = std::size_t(page * kPage + pos % kPage) * kRow;
      for (const bool is_k : {true, false})
        if (!is_right(is_k, row, pos, at))
          return fmt::format("row {} of new_{} is not what its page holds", row, is_k ? "k" : "v");
    }
    return "";
  }

  int rows() const { return lengths_.qo_indptr.back(); }
  int num_layers() const { return int(layers_.size()); }
  double bytes() const { return 2.0 * 2 * 2 * rows() * kRow; }  // K and V, read and written

 private:
  static constexpr std::size_t kRow = std::size_t{kKvHeads} * kHeadDim;
  struct Layer {
    DeviceMemory new_k, new_v, k, v;
  };

  int num_pages() const { return lengths_.kv_indptr.back(); }

  void add_layer(Engine& engine) {
    Layer layer;
    for (DeviceMemory* memory : {&layer.new_k, &layer.new_v}) {
      *memory = DeviceMemory(engine, source_.size() * 2);
      memory->write(0, std::as_bytes(std::span(source_)));
    }
    for (DeviceMemory* memory : {&layer.k, &layer.v})
      *memory = DeviceMemory(engine, std::size_t(num_pages()) * kPage * kRow * 2);
    layers_.push_back(layer);
  }

  bool is_right(bool is_k, int row, int pos, std::size_t at) const {
    std::vector<std::uint16_t> found(kRow);
    (is_k ? layers_[0].k : layers_[0].v).read(at * 2, std::as_writable_bytes(std::span(found)));
    const std::uint16_t* from = source_.data() + std::size_t(row) * kRow;
    if (!is_k || shape_.mode == AppendKv::copy) return std::equal(found.begin(), found.end(), from);
    for (std::size_t i = 0; i < kRow; ++i) {
      const int dim = int(i % kHeadDim), half = kHeadDim / 2;
      const double angle = pos * std::pow(kTheta, -2.0 * (dim % half) / kHeadDim);
      const double x = bf16_to_float(from[i]);
      const double pair = bf16_to_float(from[dim < half ? i + half : i - half]);
      const double right = x * std::cos(angle) + (dim < half ? -pair : pair) * std::sin(angle);
      // bf16 keeps 2^-9 of a value; an f32 angle of 8192 is exact to 5e-4.
      if (!(std::abs(bf16_to_float(found[i]) - right) <= 0.004 * std::abs(right) + 0.01)) return false;
    }
    return true;
  }

  const Shape& shape_;
  LengthsOnly lengths_;
  Attention attention_;
  Workspace workspace_;
  std::vector<std::uint16_t> source_;
  std::vector<Layer> layers_;
  std::vector<std::int32_t> pages_;
  DeviceMemory indices_;
};

AppendRow measure(Engine& engine, const Shape& shape) {
  AppendRow row{.name = shape.name};
  try {
    AppendData data(engine, shape);
    const bool on_gpu = engine.device().kind == DeviceKind::cuda;
    data.append(0, nullptr);
    if (on_gpu) synchronize(nullptr);
    row.not_run = data.check();
    if (!row.not_run.empty()) return row;
    std::vector<std::function<void(Stream)>> calls;
    for (int layer = 0; layer < data.num_layers(); ++layer)
      calls.push_back([&data, layer](Stream stream) { data.append(layer, stream); });
    row.us = on_gpu ? graph_us(calls, 15) : median_us(3, [] {}, [&] { data.append(0, nullptr); });
    row.bytes = data.bytes();
    row.tbps = row.bytes / row.us / 1e6;
  } catch (const Error& error) {
    row.not_run = error.what();
  }
  return row;
}

double copy_tbps() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const DeviceBuffer from(kBytes), to(kBytes);
  fill8_async(from.data(), 0x5a, kBytes, nullptr);
  synchronize(nullptr);
  const auto copy = [&](Stream stream) { copy_on_device_async(to.data(), from.data(), kBytes, stream); };
  return 2.0 * kBytes / graph_us({copy, copy}, 9) / 1e6;
}

}  // namespace

bool AppendTable::all_ran() const {
  return std::all_of(rows.begin(), rows.end(), [](const AppendRow& row) { return row.not_run.empty(); });
}

AppendTable measure_append(Engine& engine) {
  AppendTable table;
  if (engine.device().kind == DeviceKind::cuda) table.copy_tbps = copy_tbps();
  for (const Shape& shape : shapes()) table.rows.push_back(measure(engine, shape));
  return table;
}

std::string append_table(const AppendTable& table) {
  std::string text = fmt::format("append_kv, {} kv heads of {}, page {}; copy {}\n{:<20}{:>10}{:>9}{:>9}\n", kKvHeads,
                                 kHeadDim, kPage,
                                 table.copy_tbps > 0 ? fmt::format("{:.2f} TB/s", table.copy_tbps) : "not measured", "row",
                                 "us", "TB/s", "of copy");
  for (const AppendRow& row : table.rows) {
    if (!row.not_run.empty()) {
      text += fmt::format("{:<20}not run: {}\n", row.name, row.not_run);
      continue;
    }
    text += fmt::format("{:<20}{:>10.2f}{:>9.3f}{:>9}\n", row.name, row.us, row.tbps,
                        table.copy_tbps > 0 ? fmt::format("{:.2f}", row.tbps / table.copy_tbps) : "-");
  }
  return text;
}

nlohmann::ordered_json append_json(const AppendTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const AppendRow& row : table.rows) {
    nlohmann::ordered_json& entry = rows.emplace_back(nlohmann::ordered_json{{"row", row.name}});
    if (!row.not_run.empty()) {
      entry["error"] = row.not_run;
      continue;
    }
    entry["us"] = rounded(row.us, 2), entry["TBps"] = rounded(row.tbps, 3);
    if (table.copy_tbps > 0) entry["of_copy"] = rounded(row.tbps / table.copy_tbps, 3);
  }
  nlohmann::ordered_json json;
  if (table.copy_tbps > 0) json["copy_TBps"] = rounded(table.copy_tbps, 3);
  json["rows"] = rows;
  return json;
}

}  // namespace heddle::tools
