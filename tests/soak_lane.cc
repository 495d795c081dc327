#include "tests/soak_lane.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "tools/check.h"
#include "tools/half.h"

namespace heddle_tests {

using namespace heddle;
using tools::DeviceMemory;

namespace {

constexpr int kRequests = 16, kRows = 256;  // most of a batch
constexpr int kTallest = 70, kLongest = 2048,
              kOwn = 200;  // most of a request; keys behind a prefix
// Only long prefixes are worth sharing on a GPU.
constexpr int kPrefix = 9000, kPrefixOnCpu = 600;

int most_keys(const AttentionConfig& config) {
  return config.share_prefixes ? kRequests * (kPrefix + kTallest + kOwn) : 8192;
}

// Keys that the pages hold: of two prefixes, where prefixes are shared.
int pool_keys(const AttentionConfig& config) {
  return config.share_prefixes ? 2 * kPrefix + kRequests * (kTallest + kOwn) : most_keys(config);
}
constexpr double kLseAllowed = 2e-3, kNoise = 2e-6;

// The variant's own tensors lie at fixed addresses too, large enough for every batch.
ShapeWords largest_words(const AttentionConfig& c) {
  return {.num_qo_heads = c.num_qo_heads,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .head_dim_vo = c.vo_dim(),
          .num_qo_rows = kRows,
          .num_requests = kRequests,
          .qo_len = kTallest,
          .kv_len = kLongest};
}

template <class T>
std::vector<T> read(const DeviceMemory& memory, std::size_t count) {
  std::vector<T> values(count);
  memory.read(0, std::as_writable_bytes(std::span(values)));
  return values;
}

bool is_all(std::span<const std::byte> bytes, std::uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](std::byte b) { return b == std::byte{value}; });
}

std::vector<double> widened(std::span<const std::uint16_t> values, DType dtype) {
  std::vector<double> wide;
  for (const std::uint16_t value : values) wide.push_back(tools::to_float(value, dtype));
  return wide;
}

}  // namespace

SoakLane::SoakLane(const Engine& engine, Attention attention, std::uint64_t seed, Stream capturing)
    : engine_(engine),
      attention_(std::move(attention)),
      config_(attention_.config()),
      random_(seed),
      values_(config_.q_dtype, seed),
      params_(random_params(random_, attention_.variant(), false)),
      own_(engine, attention_.variant(), largest_words(config_), tools::all_params(config_, params_),
           seed + 1),
      indices_(engine, std::size_t(most_keys(config_)) * 4) {
  const int page_rows = std::max(1, config_.page_size);
  const int num_pages = pool_keys(config_) / page_rows + 2 * kRequests;  // one is begun a request
  for (int page = 0; page < num_pages; ++page) shuffled_.push_back(page);
  make_pool(q_, std::int64_t(kRows) * config_.num_qo_heads);
  for (Pool* pool : {&k_, &v_})
    make_pool(*pool, std::int64_t(num_pages) * page_rows * config_.num_kv_heads);
  for (Pool* pool : {&new_k_, &new_v_})
    make_pool(*pool, std::int64_t(kRows) * config_.num_kv_heads);
  const Maxima maxima{.max_requests = kRequests,
                      .max_qo_rows = kRows,
                      .max_kv_tokens = most_keys(config_),
                      .max_qo_len = config_.max_qo_len};
  for (Side& side : sides_) {
    side.workspace = attention_.workspace(maxima);
    side.o = DeviceMemory(engine, q_.host.size() * 2);
    side.lse = DeviceMemory(engine, std::size_t(kRows) * config_.num_qo_heads * 4);
  }
  // Different ones, so that a row which neither side writes is seen.
  sides_[0].poison = 0xff, sides_[1].poison = 0x7f;
  draw(true);
  if (engine.device().kind == DeviceKind::cuda) capture(capturing);
}

void SoakLane::make_pool(Pool& pool, std::int64_t rows) {
  pool.host.resize(std::size_t(rows) * config_.head_dim);
  pool.device = DeviceMemory(engine_, pool.host.size() * 2);
  refill(pool);
}

void SoakLane::refill(Pool& pool) {
  values_.fill(pool.host.data(), pool.host.size());
  pool.device.write(0, std::as_bytes(std::span(pool.host)));
}

void SoakLane::capture(Stream stream) {
  synchronize(nullptr);
  attention_.plan(first_requests(num_requests()), sides_[0].workspace, stream, params_);
  Graph::begin_capture(stream);
  call(sides_[0], stream);
  graph_ = Graph::end_capture(stream);
  synchronize(stream);
}

std::string SoakLane::describe() const {
  std::vector<int> qo_lens;
  for (int r = 0; r < num_requests(); ++r) qo_lens.push_back(qo_len(r));
  ProblemShape shape{.config = config_, .params = params_, .qo_lens = qo_lens, .kv_lens = kv_lens_};
  return fmt::format("{} append_kv {}{}{}", shape.describe(), name_of(config_.append_kv),
                     config_.batch_invariant ? " batch_invariant" : "",
                     config_.share_prefixes ? " share_prefixes" : "");
}

void SoakLane::draw(bool is_small) {
  if (is_small)
    for (Pool* pool : {&q_, &new_k_, &new_v_}) refill(*pool);
  draw_lengths(is_small);
  draw_pages();
  indices_.write(0, std::as_bytes(std::span(kv_indices_)));
}

// Graphs must serve batches with and without shared prefixes. The reference is slow over long ones.
int SoakLane::draw_prefix(bool is_small) {
  if (!config_.share_prefixes) return 0;
  const int most = engine_.device().kind == DeviceKind::cuda ? kPrefix : kPrefixOnCpu;
  if (random_.below(is_small ? 16 : 2)) return random_.below(300);
  return most / 2 + random_.below(most / 2);
}

void SoakLane::draw_lengths(bool is_small) {
  qo_indptr_ = {0};
  kv_lens_.clear();
  prefix_ = draw_prefix(is_small);
  const bool is_shared = prefix_ >= kPrefixOnCpu / 2;
  const int requests = is_shared  ? kRequests - random_.below(4)
                       : is_small ? 1 + random_.below(4)
                                  : random_.below(kRequests + 1);
  int keys = most_keys(config_);
  for (int r = 0; r < requests; ++r) {
    if (keys < prefix_ + kLongest || kRows - qo_indptr_.back() < kTallest) break;
    const int tallest = !is_small ? kTallest : is_shared ? 2 : 12;
    int qo = random_.below(3) ? 1 : random_.below(tallest + 1);
    if (config_.max_qo_len) qo = std::min(qo, config_.max_qo_len);
    const bool is_long = r == 0 && !config_.share_prefixes;
    int kv = prefix_ + random_.below(!is_long ? kOwn : is_small ? 700 : kLongest - kTallest);
    if (appends()) kv += qo;
    // A page keeps rows as they were turned; the reference turns all of them, so all are new.
    if (config_.append_kv == AppendKv::transform) kv = qo;
    qo_indptr_.push_back(qo_indptr_.back() + qo);
    kv_lens_.push_back(kv);
    keys -= kv;
  }
}

// Shared are whole pages of old keys: nobody writes where another reads.
void SoakLane::draw_pages() {
  kv_indptr_ = {0};
  last_page_len_.clear();
  kv_indices_.clear();
  const int rows = std::max(1, config_.page_size), apart = random_.below(kRequests);
  int used = 0;
  for (int r = 0; r < num_requests(); ++r) {
    const int kv = kv_lens_[r], pages = (kv + rows - 1) / rows;
    kv_indptr_.push_back(kv_indptr_.back() + pages);
    last_page_len_.push_back(kv == 0 ? 0 : kv - (pages - 1) * rows);
    if (config_.page_size == 0) continue;
    const int shared = r == 0 || r == apart ? 0 : prefix_ / rows;
    for (int i = 0; i < pages; ++i)
      kv_indices_.push_back(i < shared ? kv_indices_[kv_indptr_[r - 1] + i] : draw_page(used++));
  }
}

// The next of a shuffle that goes only as far as it must.
std::int32_t SoakLane::draw_page(int index) {
  std::swap(shuffled_[index], shuffled_[index + random_.below(int(shuffled_.size()) - index)]);
  return shuffled_[index];
}

// The host's copy of what append_kv() will do.
void SoakLane::store_new_rows() {
  const std::int64_t dim = config_.head_dim, heads = config_.num_kv_heads;
  for (int r = 0; r < num_requests(); ++r)
    for (int i = 0; i < qo_len(r); ++i)
      for (int head = 0; head < heads; ++head) {
        const std::int64_t from = ((qo_indptr_[r] + i) * heads + head) * dim;
        const std::int64_t to = key_at(r, kv_lens_[r] - qo_len(r) + i, head);
        std::copy_n(&new_k_.host[from], dim, &k_.host[to]);
        std::copy_n(&new_v_.host[from], dim, &v_.host[to]);
      }
}

std::int64_t SoakLane::key_at(int request, int kv_pos, int kv_head) const {
  std::int64_t row = kv_indptr_[request] + kv_pos;
  if (config_.page_size)
    row = std::int64_t(kv_indices_[kv_indptr_[request] + kv_pos / config_.page_size]) *
              config_.page_size +
          kv_pos % config_.page_size;
  return (row * config_.num_kv_heads + kv_head) * config_.head_dim;
}

Batch SoakLane::first_requests(int count) const {
  const auto first = [](const std::vector<std::int32_t>& all, int n) {
    return std::span(all).first(n);
  };
  Batch batch{.qo_indptr = first(qo_indptr_, count + 1), .kv_indptr = first(kv_indptr_, count + 1)};
  if (config_.page_size) batch.last_page_len = first(last_page_len_, count);
  if (config_.share_prefixes) batch.kv_indices = kv_indices_;
  return batch;
}

Tensor SoakLane::pages(const Pool& pool) const {
  const std::int64_t heads = config_.num_kv_heads, dim = config_.head_dim,
                     all = std::int64_t(shuffled_.size());
  if (config_.page_size == 0)
    return tools::tensor_of(pool.device.data(), config_.kv_dtype, {all, heads, dim});
  return tools::tensor_of(pool.device.data(), config_.kv_dtype,
                          {all, config_.page_size, heads, dim});
}

Tensors SoakLane::tensors(const Side& side) const {
  const auto rows = [&](const DeviceMemory& memory) {
    return tools::tensor_of(memory.data(), config_.q_dtype,
                            {kRows, config_.num_qo_heads, config_.head_dim});
  };
  Tensors t{.q = rows(q_.device),
            .k = pages(k_),
            .v = pages(v_),
            .o = rows(side.o),
            .variant = own_.on_device()};
  if (attention_.variant().use_softmax)
    t.lse = tools::tensor_of(side.lse.data(), DType::f32, {kRows, config_.num_qo_heads});
  if (config_.page_size) t.kv_indices = static_cast<const std::int32_t*>(indices_.data());
  return t;
}

AppendTensors SoakLane::append_tensors() const {
  const auto rows = [&](const Pool& pool) {
    return tools::tensor_of(pool.device.data(), config_.kv_dtype,
                            {kRows, config_.num_kv_heads, config_.head_dim});
  };
  AppendTensors t{.new_k = rows(new_k_), .new_v = rows(new_v_), .k = pages(k_), .v = pages(v_)};
  if (config_.page_size) t.kv_indices = static_cast<const std::int32_t*>(indices_.data());
  if (config_.append_kv == AppendKv::transform) t.variant = own_.on_device();
  return t;
}

void SoakLane::poison(Side& side, Stream stream) {
  for (DeviceMemory* memory : {&side.o, &side.lse}) {
    if (engine_.device().kind == DeviceKind::cuda)
      fill8_async(memory->data(), side.poison, memory->bytes(), stream);
    else
      std::memset(memory->data(), side.poison, memory->bytes());
  }
}

// Both sides store the same rows in the same places, so it does not matter who comes first.
void SoakLane::call(Side& side, Stream stream) {
  if (appends()) {
    const bool turns = config_.append_kv == AppendKv::transform;
    attention_.append_kv(side.workspace, append_tensors(), turns ? params_ : ParamValues{}, stream);
  }
  attention_.run(side.workspace, tensors(side), params_, stream);
}

void SoakLane::replay(Stream stream, SoakCounts& counts) {
  if (graph_)
    graph_.launch(stream);
  else
    call(sides_[0], stream);
  ++counts.replays;
}

void SoakLane::launch(std::span<const Stream> streams, SoakCounts& counts) {
  const auto any = [&] { return streams[std::size_t(random_.below(int(streams.size())))]; };
  auto& [replayed, direct] = sides_;
  const int all = num_requests();
  if (appends()) store_new_rows();
  const Stream stream = any();
  poison(replayed, stream);
  // Plans and replays of other batches that may still run when the next plan is made.
  for (int earlier = random_.below(3); earlier > 0; --earlier) {
    attention_.plan(first_requests(random_.below(all + 1)), replayed.workspace, stream, params_);
    replay(stream, counts);
  }
  const PlanSummary summary =
      attention_.plan(first_requests(all), replayed.workspace, stream, params_);
  for (int times = 1 + random_.below(2); times > 0; --times) replay(stream, counts);

  // What else is in the batch must not matter then.
  num_compared_ = config_.batch_invariant ? random_.below(all + 1) : all;
  const Stream planned = any(), ran = any();
  poison(direct, planned);
  attention_.plan(first_requests(num_compared_), direct.workspace, planned, params_);
  call(direct, ran);
  ++counts.runs;
  counts.cut_streams += summary.joins[0] + summary.joins[1];
  counts.shared_prefixes += summary.shared_prefixes;
}

Found SoakLane::compare() const {
  const std::size_t values = std::size_t(qo_indptr_[num_compared_]) * config_.num_qo_heads;
  const auto same = [&]<class T>(const DeviceMemory& a, const DeviceMemory& b, std::size_t count,
                                 T) { return read<T>(a, count) == read<T>(b, count); };
  if (!same(sides_[0].o, sides_[1].o, values * config_.head_dim, std::uint16_t{}))
    return "o of the graph's replay differs from the run's: " + describe();
  if (attention_.variant().use_softmax &&
      !same(sides_[0].lse, sides_[1].lse, values, std::uint32_t{}))
    return "lse of the graph's replay differs from the run's: " + describe();
  return {};
}

Found SoakLane::judge_request(int request, const std::vector<std::uint16_t>& o,
                              const std::vector<float>& lse) const {
  const AttentionConfig& c = config_;
  const std::size_t row = std::size_t(c.num_qo_heads) * c.head_dim,
                    begin = std::size_t(qo_indptr_[request]);
  const std::size_t rows = std::size_t(qo_len(request));
  std::vector<double> k, v;
  for (int pos = 0; pos < kv_lens_[request]; ++pos)
    for (int head = 0; head < c.num_kv_heads; ++head) {
      const std::int64_t at = key_at(request, pos, head);
      for (int d = 0; d < c.head_dim; ++d) {
        k.push_back(tools::to_float(k_.host[at + d], c.kv_dtype));
        v.push_back(tools::to_float(v_.host[at + d], c.kv_dtype));
      }
    }
  const std::vector<double> q =
      widened(std::span(q_.host).subspan(begin * row, rows * row), c.q_dtype);
  const std::vector<double> found =
      widened(std::span(o).subspan(begin * row, rows * row), c.q_dtype);
  ReferenceInput input{.num_qo_heads = c.num_qo_heads,
                       .num_kv_heads = c.num_kv_heads,
                       .head_dim = c.head_dim,
                       .request = request,
                       .qo_begin = int(begin),
                       .qo_len = int(rows),
                       .kv_len = kv_lens_[request],
                       .sm_scale = c.sm_scale,
                       .q = q,
                       .k = k,
                       .v = v,
                       .tensors = own_.on_host()};
  const ParamValues params = tools::all_params(c, params_);
  const ReferenceResult exact = reference(engine_, attention_.variant(), params, input);
  input.rounding = c.q_dtype;
  const ReferenceResult plain = reference(engine_, attention_.variant(), params, input);
  const double allowed = kNoise + allowed_error(exact, plain, c.q_dtype),
               lost = lost_lse(exact, plain);
  // Negated comparisons, so that NaN is wrong.
  for (std::size_t i = 0; i < exact.o.size(); ++i)
    if (!(std::abs(found[i] - exact.o[i]) <= allowed))
      return fmt::format("request {}: o is {}, the reference has {}, {:.2e} is allowed: {}",
                         request, found[i], exact.o[i], allowed, describe());
  for (std::size_t i = 0; attention_.variant().use_softmax && i < exact.lse.size(); ++i) {
    const double at = lse[begin * c.num_qo_heads + i], wanted = exact.lse[i];
    if (at != wanted &&
        !(std::abs(at - wanted) <= lost + kLseAllowed * std::max(1.0, std::abs(wanted))))
      return fmt::format("request {}: lse is {}, the reference has {}: {}", request, at, wanted,
                         describe());
  }
  return {};
}

// Behind the batch's rows nothing may be written, and in the pages only the new keys.
Found SoakLane::judge_rest() const {
  const std::size_t values = std::size_t(qo_indptr_.back()) * config_.num_qo_heads;
  for (const Side& side : sides_) {
    const auto o = read<std::byte>(side.o, side.o.bytes()),
               lse = read<std::byte>(side.lse, side.lse.bytes());
    if (!is_all(std::span(o).subspan(values * config_.head_dim * 2), side.poison) ||
        !is_all(std::span(lse).subspan(values * 4), side.poison))
      return "something was written behind the rows of the batch: " + describe();
  }
  if (config_.append_kv == AppendKv::transform) return {};  // the host has the rows as they were
  for (const Pool* pool : {&k_, &v_})
    if (read<std::uint16_t>(pool->device, pool->host.size()) != pool->host)
      return "the pages do not hold what was stored there: " + describe();
  return {};
}

Found SoakLane::judge() const {
  const auto o = read<std::uint16_t>(sides_[0].o, q_.host.size());
  const auto lse = read<float>(sides_[0].lse, std::size_t(kRows) * config_.num_qo_heads);
  for (int r = 0; r < num_requests(); ++r)
    if (const Found found = judge_request(r, o, lse); !found.empty()) return found;
  return judge_rest();
}

}  // namespace heddle_tests
