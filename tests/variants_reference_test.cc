// The double-precision reference against cases that were worked out by hand.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "variants/reference_attention.h"

using namespace heddle;

namespace {

using Real = double;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Plain {
  static constexpr bool has_query_transform = false, has_key_transform = false,
                        has_value_transform = false, has_logits_transform = false,
                        has_logits_mask = false, has_output_transform = false,
                        has_initial_state = false, use_softmax = true;
  static constexpr RowInput query_pair = {}, key_pair = {}, value_pair = {};
};

// One request with its arrays; o and lse start as NaN, so that what is not written shows.
struct Case {
  ReferenceProblem p;
  std::vector<double> q, k, v, o, lse;

  Case(int qo_len, int kv_len, int dim, int num_qo_heads = 1, int num_kv_heads = 1) {
    p.qo_len = qo_len;
    p.kv_len = kv_len;
    p.head_dim = dim;
    p.num_qo_heads = num_qo_heads;
    p.num_kv_heads = num_kv_heads;
    q.assign(static_cast<std::size_t>(qo_len * num_qo_heads * dim), 0);
    k.assign(static_cast<std::size_t>(kv_len * num_kv_heads * dim), 0);
    v = k;
    o.assign(q.size(), std::nan(""));
    lse.assign(static_cast<std::size_t>(qo_len * num_qo_heads), std::nan(""));
  }

  template <class Hooks = Plain>
  void run(const Hooks& hooks = {}) {
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.o = o.data();
    p.lse = lse.data();
    reference_attention(hooks, p);
  }
};

// Four rows and four keys with q = 0: every kept key weighs the same, so o is the mean of the kept
// values (1, 2, 4, 8) and lse the log of their number: which keys were kept can be read off.
Case even_case(int qo_len, int kv_len) {
  Case c(qo_len, kv_len, 1);
  for (int j = 0; j < kv_len; ++j) c.v[static_cast<std::size_t>(j)] = 1 << j;
  return c;
}

std::string kept_keys_of(const Case& c, int row) {
  const double lse = c.lse[static_cast<std::size_t>(row)];
  if (lse == -kInfinity) return c.o[static_cast<std::size_t>(row)] == 0 ? "none" : "not zero";
  const double sum = c.o[static_cast<std::size_t>(row)] * std::exp(lse);
  const int keys = static_cast<int>(std::lround(sum));
  std::string text;
  for (int j = 0; j < c.p.kv_len; ++j) text += (keys >> j) & 1 ? '1' : '0';
  return text;
}

void check_kept(const Case& c, const std::vector<std::string>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    CHECK(kept_keys_of(c, static_cast<int>(i)) == rows[i]);
  }
}

// 4 x 4 with two dims; logits of row 1 at sm_scale 0.5: 0.5, -1, 1.5, 0.
Case square_case() {
  Case c(4, 4, 2);
  c.p.sm_scale = 0.5;
  c.q = {1, 0, 0, 1, 1, 1, 2, -1};
  c.k = {2, 1, 0, -2, -1, 3, 1, 0};
  c.v = {1, 10, 2, 20, 3, 30, 4, 40};
  return c;
}

}  // namespace

TEST_CASE("softmax equals the literal computation", "[variants]") {
  Case c = square_case();
  c.run();
  const double logits[4][4] = {
      {1, 0, -0.5, 0.5}, {0.5, -1, 1.5, 0}, {1.5, -1, 1, 0.5}, {1.5, 1, -2.5, 1}};
  for (std::size_t i = 0; i < 4; ++i) {
    double sum = 0, x = 0;
    for (int j = 0; j < 4; ++j) {
      sum += std::exp(logits[i][j]);
      x += std::exp(logits[i][j]) * (j + 1);
    }
    CHECK(c.o[2 * i] == Approx(x / sum).epsilon(1e-14));
    CHECK(c.o[2 * i + 1] == Approx(10 * x / sum).epsilon(1e-14));
    CHECK(c.lse[i] == Approx(std::log(sum)).epsilon(1e-14));
  }
}

TEST_CASE("logits of a thousand neither overflow nor vanish", "[variants]") {
  Case c = even_case(1, 2);
  c.q = {1000};
  c.k = {1, 1 + std::log(3.0) / 1000};
  c.run();
  CHECK(c.o[0] == Approx(0.25 * 1 + 0.75 * 2));
  CHECK(c.lse[0] == Approx(1000 + std::log(4.0)));
}

TEST_CASE("causal: the last row sees the last key", "[variants]") {
  Case c = even_case(4, 4);
  c.p.mask.causal = 1;
  c.run();
  check_kept(c, {"1000", "1100", "1110", "1111"});

  Case longer = even_case(2, 4);
  longer.p.mask.causal = 1;
  longer.run();
  check_kept(longer, {"1110", "1111"});
}

TEST_CASE("causal: rows before the first key see nothing", "[variants]") {
  Case c = even_case(4, 2);
  c.p.mask.causal = 1;
  c.run();
  check_kept(c, {"none", "none", "10", "11"});
}

TEST_CASE("a window counts keys on either side of the row's own", "[variants]") {
  Case c = even_case(4, 4);
  c.p.mask.window_left = 1;
  c.run();
  check_kept(c, {"1111", "1111", "0111", "0011"});
  c.p.mask.window_right = 0;
  c.run();
  check_kept(c, {"1000", "1100", "0110", "0011"});
  c.p.mask = MaskBounds{};
  c.p.mask.window_right = 1;
  c.run();
  check_kept(c, {"1100", "1110", "1111", "1111"});
}

TEST_CASE("sinks escape the window, but not causal", "[variants]") {
  Case c = even_case(4, 4);
  c.p.mask.causal = 1;
  c.p.mask.window_left = 0;
  c.p.mask.sink = 2;
  c.run();
  check_kept(c, {"1000", "1100", "1110", "1101"});
  c.p.mask.sink = kUnbounded;
  c.run();
  check_kept(c, {"1000", "1100", "1110", "1111"});
}

TEST_CASE("a request without keys gives 0 and -inf", "[variants]") {
  Case c(2, 0, 3, 2, 1);
  c.run();
  for (const double x : c.o) CHECK(x == 0);
  for (const double x : c.lse) CHECK(x == -kInfinity);
  Case nothing(0, 4, 3);
  nothing.run();
}

namespace {

struct Sigmoid : Plain {
  static constexpr bool has_logits_transform = true, use_softmax = false;
  double bias = 0;
  Real logits_transform(Real logit, const HookContext&) const {
    return 1 / (1 + std::exp(-(logit + bias)));
  }
};

}  // namespace

TEST_CASE("sigmoid: a plain weighted sum, without any normalisation", "[variants]") {
  Case c = square_case();
  Sigmoid hooks;
  hooks.bias = -1;
  c.run(hooks);
  const double logits[4] = {0.5, -1, 1.5, 0};
  double x = 0;
  for (int j = 0; j < 4; ++j) x += (j + 1) / (1 + std::exp(1 - logits[j]));
  CHECK(c.o[2] == Approx(x).epsilon(1e-14));
  CHECK(c.o[3] == Approx(10 * x).epsilon(1e-14));
  CHECK(c.lse[1] == 0);
}

TEST_CASE("sigmoid: a row that sees no key gives 0 and -inf", "[variants]") {
  Case c = even_case(2, 1);
  c.p.mask.causal = 1;
  c.run(Sigmoid{});
  CHECK(c.o[0] == 0);
  CHECK(c.lse[0] == -kInfinity);
  CHECK(c.o[1] == 0.5);
}

namespace {

struct Sink : Plain {
  static constexpr bool has_initial_state = true, has_output_transform = true;
  double logit = 0;
  Real initial_state(const HookContext& at) const { return at.kv_pos == -1 ? logit : std::nan(""); }
  Real output_transform(Real x, int dim, const HookContext& at) const {
    return at.kv_pos == -1 ? x + 100 + dim : std::nan("");
  }
};

}  // namespace

TEST_CASE("initial_state is a key of value 0 in the softmax and in lse", "[variants]") {
  Case c = even_case(1, 2);
  c.run(Sink{{}, std::log(2.0)});
  CHECK(c.o[0] == Approx(100 + (1 + 2) / 4.0));
  CHECK(c.lse[0] == Approx(std::log(4.0)));
}

TEST_CASE("initial_state alone makes a row that the output_transform sees", "[variants]") {
  Case c = even_case(1, 0);
  c.run(Sink{{}, 3.0});
  CHECK(c.o[0] == 100);
  CHECK(c.lse[0] == 3.0);
  c.run(Sink{{}, -kInfinity});  // nothing at all: exactly 0, not transformed
  CHECK(c.o[0] == 0);
  CHECK(c.lse[0] == -kInfinity);
}

namespace {

struct EvenKeys : Plain {
  static constexpr bool has_logits_transform = true, has_logits_mask = true;
  Real logits_transform(Real logit, const HookContext&) const { return logit + 5; }
  bool logits_mask(Real logit, const HookContext& at) const {
    return logit == 5 && at.kv_pos % 2 == 0;  // sees the transformed logit
  }
};

struct MinusInfinity : Plain {
  static constexpr bool has_logits_transform = true;
  Real logits_transform(Real, const HookContext& at) const { return at.q_pos < 2 ? -kInfinity : 0; }
};

}  // namespace

TEST_CASE("logits_mask comes after logits_transform and under the declared mask", "[variants]") {
  Case c = even_case(4, 4);
  c.p.mask.causal = 1;
  c.run(EvenKeys{});
  CHECK(c.o[0] == 1);
  CHECK(c.o[3] == Approx((1 + 4) / 2.0));
  CHECK(c.lse[3] == Approx(5 + std::log(2.0)));
}

TEST_CASE("NaN behind a mask never matters", "[variants]") {
  Case c = even_case(4, 4);
  c.p.mask.causal = 1;
  c.k[3] = c.v[3] = std::nan("");
  c.run();
  check_kept(c, {"1000", "1100", "1110"});
  CHECK(std::isnan(c.o[3]));  // and where it is seen, it shows
}

TEST_CASE("a row whose logits are all -inf is a row without keys", "[variants]") {
  Case c = even_case(4, 4);
  c.run(MinusInfinity{});
  check_kept(c, {"none", "none", "1111", "1111"});
}

namespace {

// Notes what a hook sees, as a number that can be read off the output.
struct Seen : Plain {
  static constexpr bool has_query_transform = true, has_key_transform = true,
                        has_value_transform = true;
  static constexpr RowInput query_pair = {kHalfSplit}, key_pair = {kInterleaved}, value_pair = {};
  std::vector<double>* queries;
  std::vector<double>* keys;
  std::vector<HookContext>* contexts;
  Real query_transform(Real x, Real pair, int dim, const HookContext& at) const {
    queries->push_back(pair * 10 + dim);
    contexts->push_back(at);
    return x;
  }
  Real key_transform(Real x, Real pair, int dim, const HookContext& at) const {
    keys->push_back(pair * 10 + dim);
    contexts->push_back(at);
    return x;
  }
  Real value_transform(Real x, Real pair, int, const HookContext& at) const {
    contexts->push_back(at);
    return x + pair;  // no pair was asked for: 0
  }
};

}  // namespace

TEST_CASE("transforms see their rotary partner, their dim and their position", "[variants]") {
  Case c(1, 1, 4, 4, 2);
  for (std::size_t i = 0; i < c.q.size(); ++i) c.q[i] = static_cast<double>(i);
  for (std::size_t i = 0; i < c.k.size(); ++i) c.k[i] = static_cast<double>(i);
  c.p.request = 7;
  c.p.qo_begin = 50;
  c.p.kv_len = 1;
  std::vector<double> queries, keys;
  std::vector<HookContext> contexts;
  Seen hooks;
  hooks.queries = &queries;
  hooks.keys = &keys;
  hooks.contexts = &contexts;
  c.run(hooks);
  CHECK(keys == std::vector<double>{10, 1, 32, 23, 50, 41, 72, 63});
  CHECK(std::vector<double>(queries.begin(), queries.begin() + 4) ==
        std::vector<double>{20, 31, 2, 13});
  REQUIRE(contexts.size() == 2 * 8 + 4 * 4);
  const auto as_list = [](const HookContext& at) {
    return std::vector<int>{at.request, at.qo_head, at.kv_head, at.q_pos,
                            at.kv_pos,  at.q_row,   at.qo_len,  at.kv_len};
  };
  // Per kv head: 4 + 4 calls of its K and V row, then 4 for each of its two query heads.
  CHECK(as_list(contexts[0]) == std::vector<int>{7, 0, 0, -1, 0, -1, 1, 1});
  CHECK(as_list(contexts[8]) == std::vector<int>{7, 0, 0, 0, -1, 50, 1, 1});
  CHECK(as_list(contexts[12]) == std::vector<int>{7, 1, 0, 0, -1, 50, 1, 1});
  CHECK(as_list(contexts[16]) == std::vector<int>{7, 2, 1, -1, 0, -1, 1, 1});
  CHECK(as_list(contexts[28]) == std::vector<int>{7, 3, 1, 0, -1, 50, 1, 1});
}

TEST_CASE("each query head reads the kv head of its group", "[variants]") {
  Case c(2, 3, 1, 4, 2);
  for (std::size_t i = 0; i < c.v.size(); ++i) c.v[i] = i % 2 == 0 ? 1 : 5;
  c.run();
  CHECK(c.o[0] == Approx(1));
  CHECK(c.o[1] == Approx(1));
  CHECK(c.o[2] == Approx(5));
  CHECK(c.o[7] == Approx(5));
}

TEST_CASE("lse may be left out", "[variants]") {
  Case c = even_case(1, 1);
  c.p.q = c.q.data();
  c.p.k = c.k.data();
  c.p.v = c.v.data();
  c.p.o = c.o.data();
  reference_attention(Plain{}, c.p);
  CHECK(c.o[0] == 1);
}
