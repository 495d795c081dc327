// Sampled rows of a workload in double precision, straight from the definition. Knows only what a
// workload can ask for: causal, a soft cap, a window.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tools/bench_data.h"
#include "tools/half.h"
#include "tools/parallel.h"

namespace heddle::tools {
namespace {

double larger(double a, double b) { return !(b <= a) ? b : a; }  // NaN is the largest

// The keys that one row sees: [begin, end).
struct Visible {
  int begin = 0, end = 0;
};

Visible visible(const Workload& w, int request, int row) {
  const int kv_len = w.kv_lens[request], q_pos = kv_len - w.qo_lens[request] + row;
  return {w.window_left >= 0 ? std::max(0, q_pos - w.window_left) : 0,
          w.causal ? std::clamp(q_pos + 1, 0, kv_len) : kv_len};
}

std::vector<double> logits_of(const BenchData& data, int request, int row, int qo_head,
                              Visible keys) {
  const Workload& w = data.workload();
  const int dim = w.heads.head_dim,
            kv_head = qo_head / (w.heads.num_qo_heads / w.heads.num_kv_heads);
  std::vector<float> q(dim);
  for (int d = 0; d < dim; ++d) q[d] = bf16_to_float(data.q_row(request, row, qo_head)[d]);
  std::vector<double> logits;
  for (int j = keys.begin; j < keys.end; ++j) {
    const std::uint16_t* k = data.k_row(request, j, kv_head);
    double logit = 0;
    for (int d = 0; d < dim; ++d) logit += double(q[d]) * bf16_to_float(k[d]);
    logit /= std::sqrt(double(dim));
    logits.push_back(w.soft_cap > 0 ? w.soft_cap * std::tanh(logit / w.soft_cap) : logit);
  }
  return logits;
}

std::vector<double> output_of(const BenchData& data, int request, int row, int qo_head) {
  const Workload& w = data.workload();
  const int dim = w.heads.head_dim,
            kv_head = qo_head / (w.heads.num_qo_heads / w.heads.num_kv_heads);
  const Visible keys = visible(w, request, row);
  std::vector<double> o(dim, 0.0);
  const std::vector<double> logits = logits_of(data, request, row, qo_head, keys);
  if (logits.empty()) return o;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (int j = keys.begin; j < keys.end; ++j) {
    const double weight = std::exp(logits[j - keys.begin] - largest);
    const std::uint16_t* v = data.v_row(request, j, kv_head);
    sum += weight;
    for (int d = 0; d < dim; ++d) o[d] += weight * bf16_to_float(v[d]);
  }
  for (double& x : o) x /= sum;
  return o;
}

double row_error(const BenchData& data, int request, int row) {
  const int heads = data.workload().heads.num_qo_heads, dim = data.workload().heads.head_dim;
  const std::vector<std::uint16_t> found = data.read_output(request, row);
  std::vector<double> errors(heads, 0.0);
  parallel_for(heads, [&](int head) {
    const std::vector<double> expected = output_of(data, request, row, head);
    for (int d = 0; d < dim; ++d) {
      errors[head] = larger(
          errors[head], std::abs(bf16_to_float(found[std::size_t(head) * dim + d]) - expected[d]));
    }
  });
  double worst = 0;
  for (const double error : errors) worst = larger(worst, error);
  return worst;
}

}  // namespace

double worst_error(const BenchData& data) {
  const Workload& w = data.workload();
  const int last = int(w.kv_lens.size()) - 1;
  double worst = 0;
  for (const int request : std::set<int>{0, last / 2, last}) {
    const int qo_len = w.qo_lens[request];
    if (qo_len == 0) continue;
    for (const int row : std::set<int>{0, qo_len / 3, qo_len - 1}) {
      worst = larger(worst, row_error(data, request, row));
    }
  }
  return worst;
}

}  // namespace heddle::tools
