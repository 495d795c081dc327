// Any integers as a batch, over some configs and maxima. Arrays have their exact sizes, so that a
// sanitizer sees each step beside them; what is planned is read back and must lie where it may.
#include <vector>

#include "planner/plan_view.h"
#include "tests/fuzz.h"
#include "tests/planner_batches.h"

using namespace heddle;
using heddle_tests::promise;

namespace {

PlanConfig config_of(std::uint16_t bits) {
  PlanConfig config = heddle_tests::named_config(bits % 5 + 1, bits / 5 % 7 + 1);
  constexpr int kPages[] = {0, 1, 16, 1 << 20}, kGroups[] = {1, 4, 7, 4096};
  config.page_size = kPages[bits % 4];
  config.group = kGroups[bits / 4 % 4];
  config.num_kv_heads = bits / 16 % 3 + 1;
  config.batch_invariant = bits & 256;
  config.rows_given = bits & 1024;
  if (bits & 512) config.pipeline[1] = {};
  return config;
}

std::vector<std::int32_t> array_of(heddle_tests::Bytes& bytes) {
  std::vector<std::int32_t> array(bytes.take<std::uint8_t>() % 12);
  for (std::int32_t& x : array) {
    // Small steps mostly, so that some batches are sound.
    const auto kind = bytes.take<std::uint8_t>();
    x = kind < 200   ? kind % 40
        : kind < 230 ? bytes.take<std::int16_t>()
                     : bytes.take<std::int32_t>();
  }
  return array;
}

void check_items(const PlanView& view, const PlanConfig& config, const WorkspaceLayout& layout,
                 std::size_t requests) {
  for (const Pipeline p : {Pipeline::decode, Pipeline::append})
    for (const WorkItem& item : view.section(p).items) {
      promise(item.request >= 0 && std::size_t(item.request) < requests, "an item is of a request");
      promise(item.num_rows >= 1 && item.num_rows <= config.of(p).tile_rows && item.row_begin >= 0,
              "rows lie in a tile");
      promise(
          item.row_begin + std::int64_t{item.num_rows} <= std::int64_t{item.qo_len} * config.group,
          "and in the request");
      promise(item.tile_begin >= 0 && item.tile_begin <= item.tile_end, "tiles are in order");
      if (item.tile_end > item.tile_begin)
        promise(std::int64_t{sequence_tile(item, item.tile_end - 1)} * config.of(p).tile_kv <
                    item.kv_len,
                "and in the keys");
      promise(item.partial + std::int64_t{item.join} <=
                  layout.section[static_cast<int>(p)].max_partials,
              "slots lie in the workspace");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heddle_tests::Bytes bytes(data, size);
  const PlanConfig config = config_of(bytes.take<std::uint16_t>());
  const auto kinds = bytes.take<std::uint8_t>();
  const Maxima maxima{.max_requests = kinds % 16,
                      .max_qo_rows = 1 << (kinds % 12),
                      .max_kv_tokens = std::int64_t{1} << (kinds % 40),
                      .max_qo_len = kinds & 128 ? kinds % 5 : 0};
  const MaskBounds mask{.causal = kinds & 1,
                        .window_left = kinds & 2 ? bytes.take<std::int32_t>() : kUnbounded,
                        .window_right = kinds & 4 ? bytes.take<std::int32_t>() : kUnbounded,
                        .sink = kinds & 8 ? bytes.take<std::int32_t>() : 0};
  const std::vector<std::int32_t> qo = array_of(bytes), kv = array_of(bytes),
                                  last = array_of(bytes), lens = array_of(bytes);
  const auto stride = static_cast<std::int64_t>(bytes.take<std::uint64_t>());
  const std::vector<std::int32_t> none, first_keys = config.rows_given ? array_of(bytes) : none,
                                        end_keys = config.rows_given ? array_of(bytes) : none;
  try {
    Planner planner(config, maxima);
    heddle_tests::PlanBytes memory(planner.layout().plan_bytes);
    const PlanSummary summary = planner.plan({.qo_indptr = qo,
                                              .kv_indptr = kv,
                                              .last_page_len = last,
                                              .kv_table_stride = stride,
                                              .kv_lens = lens,
                                              .first_keys = first_keys,
                                              .end_keys = end_keys},
                                             mask, memory.span());
    promise(summary.plan_bytes <= planner.layout().plan_bytes, "a plan fits its room");
    check_items(PlanView(memory.view().first(summary.plan_bytes)), config, planner.layout(),
                qo.size() - 1);
  } catch (const Error& error) {
    heddle_tests::check_sentence(error);
  }
  return 0;
}
