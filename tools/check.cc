#include "tools/check.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "engine/reference.h"
#include "tools/parallel.h"

namespace heddle::tools {
namespace {

constexpr double kLseAllowed = 2e-3;      // f32 logits and fast maths; relative above 1
constexpr double kNoise = 1e-6;           // f32 sums, where a plain computation rounds nothing

double larger(double a, double b) { return !(b <= a) ? b : a; }  // NaN is the largest

// One request's rows as doubles.
struct Rows {
  std::vector<double> q, k, v;
};

Rows gather(const AttentionConfig& config, const KvCache& cache, int layer, const QuerySide& query,
            int request, int qo_begin, int qo_len) {
  Rows rows;
  const std::int64_t row_elements = std::int64_t(config.num_qo_heads) * config.head_dim;
  for (std::int64_t i = qo_begin * row_elements; i < (qo_begin + qo_len) * row_elements; ++i) {
    rows.q.push_back(to_float(query.host_q()[i], config.q_dtype));
  }
  for (int kv_pos = 0; kv_pos < cache.kv_len(request); ++kv_pos) {
    for (int head = 0; head < config.num_kv_heads; ++head) {
      const std::int64_t row = cache.row_index(request, kv_pos, head);
      for (int d = 0; d < config.head_dim; ++d)
        rows.k.push_back(to_float(cache.host_k(layer)[row * config.head_dim + d], config.kv_dtype));
      for (int d = 0; d < config.vo_dim(); ++d)
        rows.v.push_back(to_float(cache.host_v(layer)[row * config.vo_dim() + d], config.kv_dtype));
    }
  }
  return rows;
}

struct Found {
  std::span<const double> o, lse;  // the request's rows
};

StepCheck check_request(const Engine& engine, const Attention& attention, const ParamValues& params,
                        ReferenceInput input, const Found& found) {
  const AttentionConfig& config = attention.config();
  const auto exact = reference(engine, attention.variant(), params, input);
  StepCheck check;
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    check.max_error = larger(check.max_error, std::abs(found.o[i] - exact.o[i]));
  }
  input.rounding = config.q_dtype;
  const auto plain = reference(engine, attention.variant(), params, input);
  check.tolerance = kNoise + allowed_error(exact, plain, config.q_dtype);
  const bool has_lse = attention.variant().use_softmax;
  const double lost = lost_lse(exact, plain);
  for (std::size_t i = 0; has_lse && i < exact.lse.size(); ++i) {
    if (found.lse[i] == exact.lse[i]) continue;  // both -inf
    const double error = std::max(std::abs(found.lse[i] - exact.lse[i]) - lost, 0.0) /  // NaN stays
                         std::max(1.0, std::abs(exact.lse[i]));
    check.max_lse_error = larger(check.max_lse_error, error);
  }
  return check;
}

}  // namespace

std::string StepCheck::problem() const {
  if (!rest_untouched) return "something was written behind the batch's rows.";
  if (!(max_error <= tolerance))
    return fmt::format("wrong: the error {:.3g} is above {:.3g}.", max_error, tolerance);
  if (!lse_right)
    return fmt::format("wrong: the error of lse, {:.3g}, is above {:.3g}.", max_lse_error,
                       kLseAllowed);
  return "";
}

ParamValues all_params(const AttentionConfig& config, const ParamValues& params) {
  ParamValues all = params;
  all.insert(config.constants.begin(), config.constants.end());
  return all;
}

StepCheck worse(const StepCheck& a, const StepCheck& b) {
  return {.max_error = larger(a.max_error, b.max_error),
          .tolerance = std::max(a.tolerance, b.tolerance),
          .max_lse_error = larger(a.max_lse_error, b.max_lse_error),
          .lse_right = a.lse_right && b.lse_right,
          .rest_untouched = a.rest_untouched && b.rest_untouched};
}

StepCheck check_step(const Engine& engine, const Attention& attention, const ParamValues& params,
                     const KvCache& cache, int layer, const StepBatch& batch,
                     const QuerySide& query, const std::map<std::string, Tensor>& tensors) {
  const AttentionConfig& config = attention.config();
  const ParamValues all = all_params(config, params);
  const std::vector<double> o = query.read_o(batch.num_qo_rows()),
                            lse = query.read_lse(batch.num_qo_rows());
  StepCheck total;
  std::mutex mutex;
  parallel_for(int(batch.requests.size()), [&](int r) {
    const StepRequest& request = batch.requests[r];
    const std::size_t begin = batch.qo_indptr[r], rows_of_q = request.qo_len,
                      heads = config.num_qo_heads;
    const Rows rows =
        gather(config, cache, layer, query, request.request, int(begin), request.qo_len);
    const KeyRanges ranges = batch.ranges.part(begin, rows_of_q);
    const ReferenceInput input{.num_qo_heads = config.num_qo_heads,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim,
                               .head_dim_vo = config.vo_dim(),
                               .request = r,
                               .qo_begin = int(begin),
                               .qo_len = request.qo_len,
                               .kv_len = cache.kv_len(request.request),
                               .sm_scale = config.sm_scale,
                               .q = rows.q,
                               .k = rows.k,
                               .v = rows.v,
                               .tensors = tensors,
                               .first_keys = ranges.first,
                               .end_keys = ranges.end};
    const Found found{
        std::span(o).subspan(begin * heads * config.vo_dim(), rows_of_q * heads * config.vo_dim()),
        std::span(lse).subspan(begin * heads, rows_of_q * heads)};
    const StepCheck check = check_request(engine, attention, all, input, found);
    const std::lock_guard lock(mutex);
    total = worse(total, check);
  });
  total.lse_right = total.max_lse_error <= kLseAllowed;
  total.rest_untouched = query.rest_untouched(batch.num_qo_rows());
  return total;
}

}  // namespace heddle::tools
