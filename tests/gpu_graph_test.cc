// One captured graph serves every batch within the maxima, bit for bit what a fresh plan and run give.
#include <fmt/format.h>

#include "runtime/driver.h"
#include "tests/catch.h"
#include "tests/problem.h"
#include "tools/step.h"

using namespace heddle;
using namespace heddle_tests;

namespace {

constexpr int kMaxRequests = 24;
constexpr int kPages = 700;

// Tensors at fixed addresses, batches that change.
struct GraphCase {
  Engine& engine;
  AttentionConfig config;
  tools::KvCache cache;
  tools::QuerySide query;
  tools::DeviceMemory indices;
  Attention attention;
  Workspace replayed, fresh;
  StreamHandle stream = StreamHandle::create();
  Graph graph;
  tools::Random random{7};
  int next_request = 0;

  GraphCase(Engine& e, const AttentionConfig& c)
      : engine(e), config(c),
        cache(e, {.num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .page_size = c.page_size, .dtype = c.kv_dtype}, 1,
              kPages, 11),
        query(e, 400, c.num_qo_heads, c.head_dim, c.q_dtype, 5), indices(e, kPages * 4), attention(e.attention(c)) {
    const Maxima maxima{.max_requests = kMaxRequests, .max_qo_rows = 400, .max_kv_tokens = 1 << 16};
    replayed = attention.workspace(maxima);
    fresh = attention.workspace(maxima);
  }

  Tensors tensors() {
    return {.q = query.q(), .k = cache.k(0), .v = cache.v(0), .o = query.o(), .lse = query.lse(),
            .kv_indices = static_cast<const std::int32_t*>(indices.data())};
  }

  // A batch of fresh requests: any number, any lengths that the pool holds.
  tools::StepBatch draw_batch() {
    for (int r = 0; r < next_request; ++r) cache.release(r);
    next_request = 0;
    std::vector<tools::StepRequest> step;
    const int requests = random.below(kMaxRequests + 1);
    int rows = 0;
    for (int r = 0; r < requests; ++r) {
      const int qo = random.below(4) ? 1 : random.below(30), kv = random.below(r == 0 ? 3000 : 300);
      cache.append(next_request, kv);
      step.push_back({next_request++, qo});
      rows += qo;
    }
    cache.upload();
    query.refill(rows);
    return tools::StepBatch(cache, step);
  }

  void set_indices(const tools::StepBatch& batch) {
    if (!batch.kv_indices.empty()) indices.write(0, std::as_bytes(std::span(batch.kv_indices)));
  }

  void capture() {
    Graph::begin_capture(stream.get());
    attention.run(replayed, tensors(), {}, stream.get());
    graph = Graph::end_capture(stream.get());
  }
};

struct Bits {
  std::vector<double> o, lse;
  bool operator==(const Bits& other) const {
    return o.size() == other.o.size() && lse.size() == other.lse.size() &&
           std::equal(o.begin(), o.end(), other.o.begin(), same) && std::equal(lse.begin(), lse.end(), other.lse.begin(), same);
  }
  static bool same(double a, double b) { return a == b || (a != a && b != b); }
};

Bits read(const GraphCase& c, int rows) { return {c.query.read_o(rows), c.query.read_lse(rows)}; }

// The first four requests of a batch, over the same pages.
tools::StepBatch first_four(tools::StepBatch batch) {
  batch.requests.resize(4);
  batch.qo_indptr.resize(5), batch.kv_indptr.resize(5), batch.last_page_len.resize(4);
  return batch;
}

}  // namespace

TEST_CASE("graph: one capture serves 200 random batches, bit-equal to a fresh plan and run", "[gpu][graph]") {
  Engine engine;
  for (const char* variant : {"causal", "gemma2"}) {
    GraphCase c(engine, {.variant = variant, .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128});
    tools::StepBatch first = c.draw_batch();
    c.set_indices(first);
    c.attention.plan(first.batch(), c.replayed, c.stream.get());
    c.capture();
    int equal = 0;
    for (int i = 0; i < 110; ++i) {
      const tools::StepBatch batch = c.draw_batch();
      const int rows = batch.num_qo_rows();
      c.set_indices(batch);
      c.attention.plan(batch.batch(), c.replayed, c.stream.get());
      c.graph.launch(c.stream.get());
      c.stream.synchronize();
      const Bits replay = read(c, rows);
      CHECK(c.query.rest_untouched(rows));
      c.graph.launch(c.stream.get());  // the same plan again: its slots are empty again
      c.stream.synchronize();
      const Bits again = read(c, rows);
      c.attention.plan(batch.batch(), c.fresh, c.stream.get());
      c.attention.run(c.fresh, c.tensors(), {}, c.stream.get());
      c.stream.synchronize();
      const Bits direct = read(c, rows);
      equal += replay == direct && again == direct;
      for (double x : direct.o) REQUIRE(x == x);
    }
    CHECK(equal == 110);
  }
}

TEST_CASE("graph: a plan made while earlier replays run never disturbs them", "[gpu][graph]") {
  Engine engine;
  GraphCase c(engine, {.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128});
  // Two batches over one set of pages: only the lengths differ.
  tools::StepBatch long_batch = c.draw_batch();
  while (long_batch.requests.size() < 8) long_batch = c.draw_batch();
  tools::StepBatch short_batch = first_four(long_batch);
  c.set_indices(long_batch);
  const int rows = short_batch.num_qo_rows();
  c.attention.plan(short_batch.batch(), c.replayed, c.stream.get());
  c.capture();
  c.graph.launch(c.stream.get());
  c.stream.synchronize();
  const Bits expected = read(c, rows);
  for (int i = 0; i < 100; ++i) {
    // Many plans and replays in flight, never a wait between them; the last one must hold.
    for (int j = 0; j < 20; ++j) {
      c.attention.plan((j % 2 ? short_batch : long_batch).batch(), c.replayed, c.stream.get());
      c.graph.launch(c.stream.get());
    }
    c.stream.synchronize();
    REQUIRE(read(c, rows) == expected);
  }
}

TEST_CASE("graph: plan on another stream waits for the work on the first", "[gpu][graph]") {
  Engine engine;
  GraphCase c(engine, {.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128});
  tools::StepBatch batch = c.draw_batch();
  while (batch.requests.size() < 8) batch = c.draw_batch();
  c.set_indices(batch);
  const StreamHandle other = StreamHandle::create();
  c.attention.plan(batch.batch(), c.replayed, c.stream.get());
  c.capture();
  c.graph.launch(c.stream.get());
  c.stream.synchronize();
  const Bits expected = read(c, batch.num_qo_rows());
  for (int i = 0; i < 50; ++i) {
    c.attention.plan(batch.batch(), c.replayed, other.get());
    c.graph.launch(other.get());
    c.attention.plan(batch.batch(), c.replayed, c.stream.get());
    c.graph.launch(c.stream.get());
  }
  c.stream.synchronize();
  CHECK(read(c, batch.num_qo_rows()) == expected);
}

TEST_CASE("graph: run on another stream waits for the plan and the run on the first", "[gpu][graph]") {
  Engine engine;
  GraphCase c(engine, {.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128});
  tools::StepBatch batch = c.draw_batch();
  while (batch.requests.size() < 8) batch = c.draw_batch();
  tools::StepBatch short_batch = first_four(batch);
  c.set_indices(batch);
  const StreamHandle other = StreamHandle::create();
  c.attention.plan(batch.batch(), c.replayed, c.stream.get());
  c.attention.run(c.replayed, c.tensors(), {}, c.stream.get());
  c.stream.synchronize();
  const Bits expected = read(c, batch.num_qo_rows());
  for (int i = 0; i < 50; ++i) {
    c.attention.plan(short_batch.batch(), c.replayed, other.get());
    c.attention.plan(batch.batch(), c.replayed, c.stream.get());
    c.attention.run(c.replayed, c.tensors(), {}, other.get());
    c.attention.run(c.replayed, c.tensors(), {}, c.stream.get());
  }
  c.stream.synchronize();
  CHECK(read(c, batch.num_qo_rows()) == expected);
}

TEST_CASE("graph: captured on one stream, launched on the stream of its plans", "[gpu][graph]") {
  Engine engine;
  GraphCase c(engine, {.variant = "causal", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128});
  tools::StepBatch batch = c.draw_batch();
  while (batch.requests.size() < 8) batch = c.draw_batch();
  c.set_indices(batch);
  const StreamHandle other = StreamHandle::create();
  c.attention.plan(batch.batch(), c.replayed, other.get());
  c.attention.run(c.replayed, c.tensors(), {}, other.get());
  other.synchronize();
  const Bits expected = read(c, batch.num_qo_rows());
  c.capture();
  for (int i = 0; i < 20; ++i) {
    c.attention.plan(batch.batch(), c.replayed, other.get());
    c.graph.launch(other.get());
  }
  other.synchronize();
  CHECK(read(c, batch.num_qo_rows()) == expected);
}
