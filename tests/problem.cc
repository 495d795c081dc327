#include "tests/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "runtime/driver.h"
#include "tests/draw.h"
#include "tools/check.h"
#include "tools/half.h"
#include "tools/parallel.h"

namespace heddle_tests {

using namespace heddle;
using tools::DeviceMemory;
using tools::Random;

namespace {

constexpr std::uint16_t kPoison = tools::kHalfNan;
constexpr double kLseAllowed = 1e-3;     // relative above 1: f32 logits, ex2.approx and lg2.approx
constexpr double kNoise = 2e-6;          // f32 sums, where a plain computation rounds nothing

}  // namespace

std::string ProblemShape::describe() const {
  std::string params_text;
  for (const auto& [name, value] : all_params()) params_text += fmt::format(" {}={}", name, value);
  return fmt::format("{}{} {} heads {},{},{},{} page {} {} max_qo_len {} qo [{}] kv [{}]", config.variant, params_text,
                     name_of(config.q_dtype), config.num_qo_heads, config.num_kv_heads, config.head_dim, config.vo_dim(),
                     config.page_size, layout == KvLayout::NHD ? "NHD" : "HND", config.max_qo_len,
                     fmt::join(qo_lens, ","), fmt::join(kv_lens, ","));
}

ParamValues ProblemShape::all_params() const { return tools::all_params(config, params); }

Problem::Problem(const Engine& engine, const ProblemShape& shape, std::uint64_t seed)
    : engine_(engine), shape_(shape),
      own_(engine, engine.variants().at(shape.config.variant),
           tools::shape_words(shape.config, shape.qo_lens, shape.kv_lens), shape.all_params(), seed + 1),
      ranges_(shape.ranges ? *shape.ranges
                           : tools::random_key_ranges(engine.variants().at(shape.config.variant), seed + 2, shape.qo_lens,
                                                      shape.kv_lens)) {
  Random random(seed);
  lay_out(random);
  fill(random, seed);
  q_device_ = upload(engine_, q_host_);
  k_device_ = upload(engine_, k_host_);
  v_device_ = upload(engine_, v_host_);
  indices_device_ = upload(engine_, kv_indices_);
  o_device_ = DeviceMemory(engine_, o_poison_.size() * 2);
  lse_device_ = DeviceMemory(engine_, std::max<std::size_t>(16, std::size_t(qo_indptr_.back() + 2) * shape_.config.num_qo_heads * 4));
  poison_output();
}

void Problem::lay_out(Random& random) {
  const AttentionConfig& c = shape_.config;
  qo_indptr_ = kv_indptr_ = {0};
  const int rows_per_page = std::max(1, c.page_size);
  for (std::size_t r = 0; r < shape_.kv_lens.size(); ++r) {
    const int kv = shape_.kv_lens[r], pages = (kv + rows_per_page - 1) / rows_per_page;
    qo_indptr_.push_back(qo_indptr_.back() + shape_.qo_lens[r]);
    kv_indptr_.push_back(kv_indptr_.back() + (c.page_size ? pages : kv));
    last_page_len_.push_back(kv == 0 ? 0 : kv - (pages - 1) * rows_per_page);
  }
  num_pages_ = kv_indptr_.back() + 3;
  if (c.page_size) {
    std::vector<std::int32_t> ids(num_pages_);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[random.below(static_cast<int>(i) + 1)]);
    kv_indices_.assign(ids.begin(), ids.begin() + kv_indptr_.back());
    for (std::size_t r = 1; r < shape_.shared_pages.size(); ++r)
      std::copy_n(kv_indices_.begin() + kv_indptr_[r - 1], shape_.shared_pages[r], kv_indices_.begin() + kv_indptr_[r]);
  }
  q_.head = spread(random, c.head_dim), q_.row = spread(random, q_.head * c.num_qo_heads);
  o_.head = spread(random, c.vo_dim()), o_.row = spread(random, o_.head * c.num_qo_heads);
  for (Strides* s : {&k_, &v_}) {
    const int dim = s == &k_ ? c.head_dim : c.vo_dim();
    if (c.page_size && shape_.layout == KvLayout::HND) {
      s->row = spread(random, dim), s->head = spread(random, s->row * c.page_size);
      s->outer = spread(random, s->head * c.num_kv_heads);
    } else {
      s->head = spread(random, dim), s->row = spread(random, s->head * c.num_kv_heads);
      s->outer = c.page_size ? spread(random, s->row * c.page_size) : s->row;
    }
  }
}

std::int64_t Problem::kv_row(int request, int kv_pos, const Strides& s) const {
  const int page_size = shape_.config.page_size;
  if (page_size == 0) return (kv_indptr_[request] + kv_pos) * s.row;
  return kv_indices_[kv_indptr_[request] + kv_pos / page_size] * s.outer + kv_pos % page_size * s.row;
}

void Problem::fill(Random&, std::uint64_t seed) {
  const AttentionConfig& c = shape_.config;
  tools::NormalSource random(c.q_dtype, seed);
  const auto put = [&](std::uint16_t* row, int which) {
    const int dim = which == 2 ? c.vo_dim() : c.head_dim;
    if (!shape_.constant) return random.fill(row, dim);
    std::fill_n(row, dim, tools::from_float((*shape_.constant)[std::size_t(which)], c.q_dtype));
  };
  q_host_.assign((qo_indptr_.back() + 2) * q_.row, kPoison);
  o_poison_.assign((qo_indptr_.back() + 2) * o_.row, kPoison);
  for (int row = 0; row < qo_indptr_.back(); ++row)
    for (int head = 0; head < c.num_qo_heads; ++head) put(&q_host_[row * q_.row + head * q_.head], 0);
  k_host_.assign(num_pages_ * k_.outer, kPoison);
  v_host_.assign(num_pages_ * v_.outer, kPoison);
  for (std::size_t r = 0; r < shape_.kv_lens.size(); ++r)
    for (int i = 0; i < shape_.kv_lens[r]; ++i)
      for (int head = 0; head < c.num_kv_heads; ++head) {
        put(&k_host_[kv_row(int(r), i, k_) + head * k_.head], 1);
        put(&v_host_[kv_row(int(r), i, v_) + head * v_.head], 2);
      }
}

void Problem::poison_keys(int request, int begin, int end) {
  const AttentionConfig& c = shape_.config;
  for (int i = begin; i < end; ++i)
    for (int head = 0; head < c.num_kv_heads; ++head) {
      std::fill_n(&k_host_[kv_row(request, i, k_) + head * k_.head], c.head_dim, kPoison);
      std::fill_n(&v_host_[kv_row(request, i, v_) + head * v_.head], c.vo_dim(), kPoison);
    }
  k_device_.write(0, std::as_bytes(std::span(k_host_)));
  v_device_.write(0, std::as_bytes(std::span(v_host_)));
}

Batch Problem::batch() const {
  Batch batch{.qo_indptr = qo_indptr_, .kv_indptr = kv_indptr_};
  if (shape_.config.page_size) batch.last_page_len = last_page_len_;
  if (shape_.config.share_prefixes) batch.kv_indices = kv_indices_;
  ranges_.give(batch);
  return batch;
}

Tensors Problem::tensors() const {
  const AttentionConfig& c = shape_.config;
  const std::int64_t rows = qo_indptr_.back() + 2;
  Tensors t;
  t.q = {q_device_.data(), c.q_dtype, 3, {rows, c.num_qo_heads, c.head_dim}, {q_.row, q_.head, 1}};
  t.o = {o_device_.data(), c.q_dtype, 3, {rows, c.num_qo_heads, c.vo_dim()}, {o_.row, o_.head, 1}};
  const auto kv = [&](const DeviceMemory& memory, const Strides& s, int dim) -> Tensor {
    if (c.page_size == 0)
      return {memory.data(), c.kv_dtype, 3, {num_pages_, c.num_kv_heads, dim}, {s.row, s.head, 1}};
    if (shape_.layout == KvLayout::NHD)
      return {memory.data(), c.kv_dtype, 4, {num_pages_, c.page_size, c.num_kv_heads, dim}, {s.outer, s.row, s.head, 1}};
    return {memory.data(), c.kv_dtype, 4, {num_pages_, c.num_kv_heads, c.page_size, dim}, {s.outer, s.head, s.row, 1}};
  };
  t.k = kv(k_device_, k_, c.head_dim), t.v = kv(v_device_, v_, c.vo_dim());
  if (shape_.want_lse) t.lse = tools::tensor_of(lse_device_.data(), DType::f32, {rows, c.num_qo_heads});
  if (c.page_size) t.layout = shape_.layout;
  t.variant = own_.on_device();
  if (c.page_size) t.kv_indices = static_cast<const std::int32_t*>(indices_device_.data());
  return t;
}

Maxima Problem::maxima() const {
  std::int64_t tokens = 0;
  for (int kv : shape_.kv_lens) tokens += kv;
  return {.max_requests = std::max(1, int(shape_.kv_lens.size())), .max_qo_rows = std::max(1, qo_indptr_.back()),
          .max_kv_tokens = std::max<std::int64_t>(1, tokens), .max_qo_len = shape_.config.max_qo_len};
}

void Problem::poison_output() {
  o_device_.write(0, std::as_bytes(std::span(o_poison_)));
  const std::vector<std::uint32_t> nan(lse_device_.bytes() / 4, 0x7fc00123u);
  lse_device_.write(0, std::as_bytes(std::span(nan)));
}

std::vector<std::uint16_t> Problem::o_bits() const {
  std::vector<std::uint16_t> bits(o_poison_.size());
  o_device_.read(0, std::as_writable_bytes(std::span(bits)));
  return bits;
}

std::vector<std::uint32_t> Problem::lse_bits() const {
  std::vector<std::uint32_t> bits(lse_device_.bytes() / 4);
  lse_device_.read(0, std::as_writable_bytes(std::span(bits)));
  return bits;
}

std::vector<double> Problem::gather_kv(int request, bool keys) const {
  const AttentionConfig& c = shape_.config;
  const Strides& s = keys ? k_ : v_;
  const auto& host = keys ? k_host_ : v_host_;
  const int dim = keys ? c.head_dim : c.vo_dim();
  std::vector<double> rows;
  for (int i = 0; i < shape_.kv_lens[request]; ++i)
    for (int head = 0; head < c.num_kv_heads; ++head)
      for (int d = 0; d < dim; ++d)
        rows.push_back(tools::to_float(host[kv_row(request, i, s) + head * s.head + d], c.kv_dtype));
  return rows;
}

Verdict Problem::judge_request(int request, const std::vector<std::uint16_t>& o, const std::vector<float>& lse) const {
  const AttentionConfig& c = shape_.config;
  const int begin = qo_indptr_[request], qo_len = shape_.qo_lens[request];
  std::vector<double> q;
  for (int row = begin; row < begin + qo_len; ++row)
    for (int head = 0; head < c.num_qo_heads; ++head)
      for (int d = 0; d < c.head_dim; ++d)
        q.push_back(tools::to_float(q_host_[row * q_.row + head * q_.head + d], c.q_dtype));
  const std::vector<double> k = gather_kv(request, true), v = gather_kv(request, false);
  const tools::KeyRanges ranges = ranges_.part(std::size_t(begin), std::size_t(qo_len));
  ReferenceInput input{.num_qo_heads = c.num_qo_heads, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim,
                       .head_dim_vo = c.head_dim_vo, .request = request, .qo_begin = begin, .qo_len = qo_len, .kv_len = shape_.kv_lens[request],
                       .sm_scale = c.sm_scale, .q = q, .k = k, .v = v, .tensors = own_.on_host(),
                       .first_keys = ranges.first, .end_keys = ranges.end};
  const ParamValues params = shape_.all_params();
  const Variant& variant = engine_.variants().at(c.variant);
  const ReferenceResult exact = reference(engine_, variant, params, input);
  input.rounding = c.q_dtype;
  const ReferenceResult plain = reference(engine_, variant, params, input);
  Verdict verdict{.ok = true, .allowed = kNoise + allowed_error(exact, plain, c.q_dtype)};
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    const std::int64_t row = begin + std::int64_t(i) / (c.num_qo_heads * c.vo_dim());
    const std::int64_t head = std::int64_t(i) / c.vo_dim() % c.num_qo_heads;
    const double found = tools::to_float(o[row * o_.row + head * o_.head + std::int64_t(i) % c.vo_dim()], c.q_dtype);
    const double error = std::abs(found - exact.o[i]);
    if (!(error <= verdict.error)) verdict.error = error;  // NaN stays
  }
  const double lost = lost_lse(exact, plain);
  for (std::size_t i = 0; shape_.want_lse && i < exact.lse.size(); ++i) {
    const double found = lse[std::size_t(begin) * c.num_qo_heads + i];
    if (found == exact.lse[i]) continue;
    const double error =  // NaN stays
        std::max(std::abs(found - exact.lse[i]) - lost, 0.0) / std::max(1.0, std::abs(exact.lse[i]));
    if (!(error <= verdict.lse_error)) verdict.lse_error = error;
  }
  return verdict;
}

bool Problem::rest_is_poison(const std::vector<std::uint16_t>& o) const {
  const AttentionConfig& c = shape_.config;
  for (std::int64_t i = 0; i < std::int64_t(o.size()); ++i) {
    const std::int64_t row = i / o_.row, head = i % o_.row / o_.head, d = i % o_.row % o_.head;
    const bool inside = row < qo_indptr_.back() && head < c.num_qo_heads && d < c.vo_dim();
    if (!inside && o[i] != kPoison) return false;
  }
  return true;
}

Verdict Problem::judge() const {
  const std::vector<std::uint16_t> o = o_bits();
  const std::vector<std::uint32_t> bits = lse_bits();
  std::vector<float> lse(bits.size());
  std::memcpy(lse.data(), bits.data(), bits.size() * 4);
  // The largest error of the whole problem against the most that is allowed, as one figure.
  Verdict total{.ok = true, .allowed = kNoise};
  std::vector<Verdict> verdicts(shape_.kv_lens.size());
  tools::parallel_for(int(verdicts.size()), [&](int r) { verdicts[std::size_t(r)] = judge_request(r, o, lse); });
  for (const Verdict& v : verdicts) {
    total.allowed = std::max(total.allowed, v.allowed);
    if (!(v.error <= total.error)) total.error = v.error;
    if (!(v.lse_error <= total.lse_error)) total.lse_error = v.lse_error;
  }
  const bool rest = rest_is_poison(o);
  total.ok = total.error <= total.allowed && total.lse_error <= kLseAllowed && rest;
  if (!total.ok)
    total.what = fmt::format("error {:.3e} of {:.3e} allowed, lse error {:.1e}{}: {}", total.error, total.allowed,
                             total.lse_error, rest ? "" : ", wrote outside its rows", shape_.describe());
  return total;
}

void compile_all(Engine& engine, const std::vector<AttentionConfig>& configs) {
  tools::parallel_for(int(configs.size()), [&](int i) { engine.attention(configs[std::size_t(i)]); });
}

void plan_and_run(Attention& attention, Workspace& workspace, Problem& problem) {
  attention.plan(problem.batch(), workspace, nullptr, problem.shape().params);
  attention.run(workspace, problem.tensors(), problem.shape().params);
  if (!attention.kernels().empty() && attention.kernels()[0].arch != "cpu") synchronize(nullptr);
}

ProblemShape random_shape(Random& random, const AttentionConfig& config, const Variant& variant) {
  const tools::RandomBatch batch = tools::random_batch(random, config, variant);
  return {.config = config, .layout = batch.layout, .params = batch.params, .qo_lens = batch.qo_lens,
          .kv_lens = batch.kv_lens, .want_lse = variant.use_softmax};
}

}  // namespace heddle_tests
