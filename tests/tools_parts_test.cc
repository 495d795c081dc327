// Parts of the command that figures rest on.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "runtime/nvrtc.h"
#include "tests/catch.h"
#include "tools/bench_growth.h"
#include "tools/bench_report.h"
#include "tools/half.h"
#include "tools/kv_cache.h"
#include "tools/options.h"
#include "tools/parallel.h"
#include "tools/smooth_line.h"
#include "tools/step.h"
#include "tools/texts.h"
#include "tools/workload.h"

using namespace heddle;
using namespace heddle::tools;
using heddle_tests::contains;

namespace {

Workload only_workload(const std::string& fields) {
  return read_workloads(R"({"workloads": [{"name": "w", "kind": "append", )" + fields + "}]}",
                        "w.json")
      .at(0);
}

}  // namespace

TEST_CASE("half: every 16-bit value survives the way through float", "[tools]") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const float value = to_float(std::uint16_t(bits), dtype);
      if (std::isnan(value)) continue;
      if (from_float(value, dtype) != bits) FAIL("bits " << bits);
    }
  }
}

TEST_CASE("half: ties go to even, overflow to infinity", "[tools]") {
  CHECK(float_to_bf16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(float_to_bf16(1.0f + 3 * 0x1p-8f) == 0x3f82);
  CHECK(float_to_f16(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(float_to_f16(65520.0f) == 0x7c00);
  CHECK(float_to_f16(0x1p-25f) == 0);
}

TEST_CASE("workload: bytes and FLOPs count what is visible", "[tools]") {
  const std::string shape = R"("qo": [4], "kv": [6], "heads": [2, 1, 8], "page": 0)";
  const Workload full = only_workload(shape);
  CHECK(full.flops() == 4.0 * 8 * 2 * (4 * 6));
  CHECK(full.bytes() == 2.0 * (6 * 2 * 8 + 4 * 2 * 2 * 8));
  CHECK(only_workload(shape + R"(, "causal": true)").flops() == 4.0 * 8 * 2 * (3 + 4 + 5 + 6));
  CHECK(only_workload(shape + R"(, "causal": true, "window_left": 1)").flops() ==
        4.0 * 8 * 2 * (2 * 4));
  // Positions 2 to 5 with a window of one key to the left: keys 1 to 5.
  CHECK(only_workload(shape + R"(, "window_left": 1)").kv_bytes() == 2.0 * (5 * 2 * 8));
}

TEST_CASE("workload: a variant's declared mask decides what is counted", "[tools]") {
  Engine engine({.device = DeviceKind::cpu});
  const std::string shape = R"("qo": [1], "kv": [4096], "heads": [2, 1, 8], "page": 0, )";
  Workload w = only_workload(shape + R"("variant": "gemma2", "params": {"window": 1023})");
  settle_variant(engine, w);
  CHECK(w.kv_bytes() == 2.0 * (1024 * 2 * 8));
  CHECK(!w.is_plain_decode());
  CHECK(variant_of(engine, w).variant.name == "gemma2");
  w.mask = {.causal = 1, .window_left = 9, .sink = 4};
  CHECK(w.flops() == 4.0 * 8 * 2 * 14);
  w.mask.sink = 4090;  // reaches into the window
  CHECK(w.flops() == 4.0 * 8 * 2 * 4096);
  w.variant = "gema2";
  CHECK_THROWS_WITH(settle_variant(engine, w), contains("gemma2"));
  w = only_workload(shape + R"("variant": "gemma2", "params": {"windw": 3})");
  CHECK_THROWS_WITH(settle_variant(engine, w), contains("window"));
}

TEST_CASE("workload: given ranges count the pairs that they leave", "[tools]") {
  Engine engine({.device = DeviceKind::cpu});
  const std::string shape = R"("qo": [1, 10], "kv": [5, 10], "heads": [2, 1, 8], "page": 0, )";
  const auto settled = [&](const std::string& rule) {
    Workload w = only_workload(shape + rule);
    settle_variant(engine, w);
    return w;
  };
  constexpr double kPair = 4.0 * 8 * 2;
  // Documents of four keys: of the second request two whole ones and half a one; the first one's row stands in its second.
  CHECK(settled(R"("variant": "key_ranges", "documents": 4)").flops() == kPair * (1 + 4 * 4 + 4 * 4 + 2 * 2));
  CHECK(settled(R"("compose": ["causal", "key_ranges"], "documents": 4)").flops() == kPair * (1 + 10 + 10 + 3));
  const Workload prefix = settled(R"("variant": "key_ranges", "prefix": 3)");
  CHECK(prefix.flops() == kPair * (5 + 3 + 3 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10));
  CHECK(prefix.kv_bytes() == 2.0 * (15 * 2 * 8));
  CHECK(prefix.keys_of(1, 0).end == 3);
  CHECK_FALSE(prefix.is_plain_decode());

  CHECK_THROWS_WITH(settled(R"("variant": "key_ranges")"), contains("has neither \"documents\" nor a \"prefix\""));
  CHECK_THROWS_WITH(settled(R"("causal": true, "prefix": 3)"), contains("which only a variant whose mask has"));
  CHECK_THROWS_WITH(settled(R"("variant": "key_ranges", "documents": 4, "prefix": 3)"), contains("one of the two must be 0"));
}

TEST_CASE("workload: keys that requests share are counted once", "[tools]") {
  const std::string shape = R"("qo": "8x1", "kv": "8x100", "heads": [2, 1, 8], "page": 4)";
  // Eight share 40 keys, each two of them 20 more; the last 40 are their own.
  CHECK(only_workload(shape + R"(, "shared": [[8, 40], [2, 20]])").kv_bytes() == 2.0 * (40 + 4 * 20 + 8 * 40) * 2 * 8);
  CHECK(only_workload(shape + R"(, "pool": 120)").kv_bytes() == 2.0 * 120 * 2 * 8);
  CHECK(only_workload(shape + R"(, "pool": 120)").flops() == only_workload(shape).flops());
}

TEST_CASE("workload: the built-in list is whole", "[tools]") {
  const auto workloads = read_workloads(embedded_text("tools/workloads.json"), "workloads.json");
  CHECK(workloads.size() == 45 + 6 + 7 + 10 + 5 + 17 + 22 + 5);
  CHECK(workloads.at(5).name == "decode_b64_4k");
  CHECK(workloads.at(5).layers() == 2);
  CHECK(workloads.at(0).layers() == 24);
  const auto is_portable = [](const Workload& w) { return w.portable; };
  CHECK(std::count_if(workloads.begin(), workloads.end(), is_portable) == 5);
  CHECK(std::find_if(workloads.begin(), workloads.end(), is_portable)->name == "portable_1x16k");
}

TEST_CASE("workload: a mistake names the workload and the key", "[tools]") {
  CHECK_THROWS_WITH(only_workload(R"("qo": [1], "kv": [1], "heads": [2, 1, 8])"),
                    contains("w.json has no \"page\""));
  CHECK_THROWS_WITH(only_workload(R"("qo": [1], "kv": [1, 2], "heads": [2, 1, 8], "page": 1)"),
                    contains("2 KV lengths"));
  CHECK_THROWS_WITH(
      only_workload(R"("qo": [1], "kv": [1], "heads": [2, 1, 8], "page": 1, "casual": true)"),
      contains("causal"));
  CHECK_THROWS_WITH(read_workloads("[]", "w.json"), contains("w.json has no list"));
  const std::string shape = R"("qo": [1], "kv": [1], "heads": [2, 1, 8], "page": 1, )";
  CHECK_THROWS_WITH(only_workload(shape + R"("dtype": "f32")"), contains("bf16 or f16"));
  CHECK_THROWS_WITH(only_workload(shape + R"("portable": 1)"), contains("has 1 as \"portable\""));
  CHECK_THROWS_WITH(only_workload(shape + R"("params": {"cap": 3})"), contains("without"));
  CHECK_THROWS_WITH(only_workload(shape + R"("variant": "causal", "soft_cap": 3)"),
                    contains("both \"variant\" and \"soft_cap\""));
}

TEST_CASE("smooth_line: finds the line, and the row that steps out of it", "[tools]") {
  std::vector<TimedBytes> rows;
  for (double bytes = 1e6; bytes < 1e10; bytes *= 2) rows.push_back({bytes, 5 + bytes / 4e6});
  const SmoothLine line = fit_line(rows);
  CHECK(std::abs(line.fixed_us / 5 - 1) < 0.01);
  CHECK(std::abs(line.us_per_byte * 4e6 - 1) < 0.01);
  rows[7].us *= 1.4;
  const SmoothLine near = fit_line(rows);
  for (std::size_t i = 0; i < rows.size(); ++i)
    CHECK((rows[i].us / near.us_at(rows[i].bytes) > 1.15) == (i == 7));
  CHECK(fit_line(std::span(rows).first(2)).us_per_byte == 0);
}

TEST_CASE("bench_growth: rows double, and stop at the most keys", "[tools]") {
  const std::vector<Growth> growth = growth_rows(1 << 21);
  CHECK(growth[0].rows.size() == 11);
  CHECK(growth[0].rows.back().batch == 1024);
  CHECK(growth[1].rows.size() == 14);
  CHECK(growth[1].rows.back().kv_len == 1 << 20);
  CHECK(growth_rows(256)[0].rows.empty());
  CHECK(growth_rows(256)[1].rows.size() == 2);
}

TEST_CASE("kv_cache: whatever holds no token holds NaN", "[tools]") {
  const Engine engine({.device = DeviceKind::cpu});
  KvCache cache(engine, {.num_kv_heads = 2, .head_dim = 4, .page_size = 3}, 1, 5, 7);
  cache.append(0, 4);
  cache.append(1, 2);
  const auto count = [&] {
    std::size_t values = 0;
    for (const std::uint16_t bits : cache.host_k(0)) values += bits != kHalfNan;
    return values;
  };
  CHECK(count() == 6 * 2 * 4);
  CHECK(cache.pages_of(0).size() == 2);
  cache.release(0);
  CHECK(count() == 2 * 2 * 4);
  CHECK(cache.kv_len(0) == 0);
  const StepBatch batch(cache, {{1, 1}, {0, 0}});
  CHECK(batch.last_page_len == std::vector<std::int32_t>{2, 0});
  CHECK(batch.kv_indptr == std::vector<std::int32_t>{0, 1, 1});
}

TEST_CASE("bench_report: a missing ceiling is null, with the reason", "[tools]") {
  Ceilings ceilings;
  ceilings.read_tbps = 4.0;
  ceilings.why_no_matmul = "no cuBLAS";
  const auto json =
      bench_json("GPU", ceilings,
                 {{.workload = "w", .us = 10, .tbps = 2}, {.workload = "x", .not_run = "why"}});
  CHECK(json["ceilings"]["matmul_TFLOPs"].is_null());
  CHECK(json["rows"][0]["of_read"] == 0.5);
  CHECK(json["rows"][0]["peer"] == "heddle");
  CHECK(json["rows"][1]["error"] == "why");
}

// As a run over the peers writes it: errors, first uses without a time, several peers a workload.
constexpr const char* kPeerRun = R"({"device": "GPU", "ceilings": {"read_TBps": 4.4}, "rows": [
  {"workload": "w", "peer": "cudnn", "us": 30.0, "TBps": 1.0, "err": "1.0e-03"},
  {"workload": "w", "peer": "flashinfer xqa", "us": 20.5, "err": "1.0e-03", "first_s": 9.1},
  {"workload": "w", "peer": "fa3", "us": 25, "err": "1.0e-03"},
  {"workload": "w", "peer": "flex", "us": 1.0, "error": "wrong by 0.3"},
  {"workload": "w", "peer": "heddle", "us": 2.0},
  {"workload": "w", "peer": "warm", "us": null},
  {"workload": "x", "peer": "flashmla", "error": "not installed: flash_mla"},
  {"workload": "x", "peer": "flashinfer", "err": "1.0e-03", "first_s": 12.0},
  {"workload": "y", "peer": "fa2", "us": 7}]})";

TEST_CASE("bench_report: the best peer is the fastest that ran and was right", "[tools]") {
  const BestPeers best = best_peers(kPeerRun, "peers.json");
  CHECK(best.size() == 2);
  CHECK(best.at("w").peer == "flashinfer xqa");
  CHECK(best.at("w").us == 20.5);
  CHECK(best.at("y").peer == "fa2");
  CHECK_THROWS_WITH(best_peers("[]", "peers.json"), contains("peers.json has no list \"rows\""));
}

TEST_CASE("bench_report: the ratio to the best peer is above 1 where heddle is faster", "[tools]") {
  const BestPeers best = best_peers(kPeerRun, "peers.json");
  const std::vector<BenchRow> rows{{.workload = "w", .us = 10},
                                   {.workload = "x", .us = 10},
                                   {.workload = "y", .not_run = "why"}};
  CHECK_THAT(bench_line(rows[0], {}, &best), contains("  2.05x flashinfer xqa (20.5 us)"));
  CHECK(bench_line(rows[1], {}, &best).ends_with("  -"));
  CHECK(bench_line(rows[2], {}, &best).ends_with("not run: why"));
  CHECK_THAT(bench_head(&best), contains("of best peer"));
  const auto json = bench_json("GPU", {}, rows, &best)["rows"];
  CHECK(json[0]["of_best_peer"] == 2.05);
  CHECK(json[0]["best_peer"] == "flashinfer xqa");
  CHECK(!json[1].contains("of_best_peer"));
  CHECK(!bench_json("GPU", {}, rows)["rows"][0].contains("best_peer"));
}

TEST_CASE("bench_report: what has a plain row says how much of its bandwidth is left", "[tools]") {
  const std::vector<BenchRow> rows{
      {.workload = "w", .us = 10, .tbps = 4},
      {.workload = "x", .us = 10, .tbps = 3, .plain = "w", .of_plain = 0.75}};
  CHECK(row_json(rows[1], {})["of_plain"] == 0.75);
  CHECK(!row_json(rows[0], {}).contains("of_plain"));
  CHECK_THAT(plain_table(rows), contains("0.75  w"));
  CHECK(plain_table({rows[0]}).empty());
}

TEST_CASE("bench_report: a row has the names that the peers' rows have", "[tools]") {
  const auto row = bench_json("GPU", {}, {{.workload = "w", .us = 10, .plan_us = 4}})["rows"][0];
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"workload", "peer", "us", "TBps", "TFLOPs", "of_read",
                                          "err", "plan_us", "first_s"});
  CHECK(row["plan_us"] == 4);
}

TEST_CASE("ceilings: the read kernels compile and spill nothing", "[tools][nvrtc]") {
  if (NvrtcCompiler::unavailable()) return;
  NvrtcCompiler compiler;
  for (const char* entry : {"read_together", "read_apart"}) {
    const Artifact artifact =
        compiler.compile({.name = "the read ceiling",
                          .unit = std::string(embedded_text("tools/read_ceiling.cu")),
                          .unit_path = "tools/read_ceiling.cu",
                          .arch = "sm_90a",
                          .entry = entry});
    CHECK(artifact.spill_bytes == 0);
    CHECK(!artifact.image.empty());
  }
}

TEST_CASE("parallel_for: every index once, and a failure is thrown when all have ended",
          "[tools]") {
  std::vector<std::atomic<int>> calls(500);
  const auto work = [&](int i) {
    ++calls[std::size_t(i)];
    if (i == 7) throw std::runtime_error("seven");
  };
  CHECK_THROWS_WITH(parallel_for(500, work), "seven");
  CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; }));
  parallel_for(0, work);
}

TEST_CASE("options: params and heads are read whole or refused", "[tools]") {
  CHECK(parse_params({"cap=30", "soft_cap.cap=-2.5e1"}).at("soft_cap.cap") == -25);
  CHECK_THROWS_AS(parse_params({"=3"}), Error);
  CHECK_THROWS_AS(parse_params({"cap=3x"}), Error);
  CHECK_THROWS_WITH(parse_heads("6,4,64"), contains("multiple"));
  CHECK(parse_heads("6,2,64").vo_dim() == 64);
  CHECK(parse_heads("6,2,192,128").vo_dim() == 128);
  CHECK_THROWS_WITH(parse_heads("6,2,192,128,1"), contains("has 5 numbers"));
  CHECK_THROWS_AS(parse_heads("6,-2,64"), Error);
}
