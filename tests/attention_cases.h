// Public bug reports about attention kernels, tried on heddle: on the CPU device (engine_cases_test.cc)
// and on the GPU (gpu_cases_test.cc). tests/cases.json says where each one comes from. A case gives
// back what is wrong, or an empty sentence.
#pragma once

#include "tests/case_run.h"

// X(function, name). The name starts with the id in tests/cases.json.
#define HEDDLE_ATTENTION_CASES(X)                                                              \
  X(b01, "B01 logits far below any finite sentinel still weigh")                               \
  X(b02, "B02 the same in decode, over two pages of one key")                                  \
  X(b04, "B04 causal rows before the first key give 0 and -inf")                               \
  X(b05, "B05 a piece that an early row does not see is neutral in the merge")                 \
  X(b07, "B07 rows that are empty in every piece give 0 and -inf, never NaN")                  \
  X(b08, "B08 an empty row has lse -inf, with that sign, beside rows that have keys")          \
  X(b10, "B10 ragged requests without keys, some and all")                                     \
  X(b11, "B11 NaN in unused slots of the last page never matters")                             \
  X(b13, "B13 NaN in keys outside the window never matters")                                   \
  X(b14, "B14 lengths that are no multiple of any tile")                                       \
  X(b16, "B16 decode requests without keys are written")                                       \
  X(b19, "B19 a batch whose every request is empty, without a page table")                     \
  X(b20, "B20 a batch of requests without query rows")                                         \
  X(b22, "B22 a sequence that grows by one key a step stays right, however it is cut")         \
  X(b23, "B23 positions past 32,768")                                                          \
  X(b25, "B25 a piece whose every tile is masked, behind others and before others")            \
  X(b26, "B26 without causal, keys behind the end do not join the sum")                        \
  X(b28, "B28 page ids on both sides of 2^31 elements")                                        \
  X(b29, "B29 a page stride of 276,480 elements and high page ids")                            \
  X(b31, "B31 a bit mask that reaches past 2^31 bytes")                                        \
  X(b34, "B34 query and output rows past 2^31 elements")                                       \
  X(b35, "B35 q, k and v as views of one fused buffer")                                        \
  X(b37, "B37 a batch of 80,000 requests")                                                     \
  X(b38, "B38 ragged K/V rows past 2^31 elements")                                             \
  X(b40, "B40 the output has its own strides, whatever q's are")                               \
  X(b43, "B43 strided inputs are right on the first call and from the cache")                  \
  X(b44, "B44 K of every second row, V contiguous")                                            \
  X(b46, "B46 a head-major output and lse behind a merge")                                     \
  X(b47, "B47 heads of K/V expanded with stride 0")                                            \
  X(b49, "B49 a bias of odd row stride")                                                       \
  X(b50, "B50 every request reads its own query rows")                                         \
  X(b53, "B53 two and three tokens a decode request are causal inside it")                     \
  X(b58, "B58 padding requests of no keys, whose table holds -1")                              \
  X(b59, "B59 padding requests of no keys in CSR")                                             \
  X(b61, "B61 two workspaces of one Attention do not share scratch")                           \
  X(b64, "B64 trees of 60 and 64 draft tokens")                                                \
  X(b70, "B70 batch_invariant: another request's rows do not change a decode row")             \
  X(b71, "B71 batch_invariant: nor where every head has its own keys")                         \
  X(b73, "B73 batch_invariant holds with a sliding window")                                    \
  X(b74, "B74 prefill in chunks off any grid is as right as in one")                           \
  X(b80, "B80 a window as long as the sequence is causal")                                     \
  X(b83, "B83 eight draft rows behind a window, head_dim 256")                                 \
  X(b85, "B85 a window of 128 over many tiles, cut and merged")                                \
  X(b86, "B86 a soft cap that only run() is given is not dropped")                             \
  X(b88, "B88 soft cap on every path")                                                         \
  X(b91, "B91 bit masks whose rows are no whole bytes")                                        \
  X(b92, "B92 a plan replaces all that the last one said")                                     \
  X(b94, "B94 a free mask is asked on every tile")                                             \
  X(b97, "B97 group 7: query tiles that cut a token's heads")                                  \
  X(b98, "B98 groups of 5, 6, 7, 16 and 64")                                                   \
  X(b100, "B100 every row of a grouped causal prefill")                                        \
  X(b101, "B101 sinks of groups that are no multiple of 8")                                    \
  X(b103, "B103 head dims of 80, 96 and 112")                                                  \
  X(b109, "B109 five tokens a request, in every request of the batch")                         \
  X(b110, "B110 head_dim 256 with pages of 16 and 32")                                         \
  X(b112, "B112 pages of 1, 16, 32, 48 and 64")                                                \
  X(b115, "B115 fewer keys than a page of 128")                                                \
  X(b118, "B118 every request shorter than a page")                                            \
  X(b121, "B121 the same shapes with another scale, then another dtype")                       \
  X(b125, "B125 a bias is never read behind the last key")                                     \
  X(b127, "B127 halves of a context merge by their lse into the whole")                        \
  X(b128, "B128 lse is a natural logarithm in both pipelines")                                 \
  X(b139, "B139 what an earlier launch left behind never matters")

// The same with a variant of the case's own, which on the CPU device needs a C++ compiler.
#define HEDDLE_COMPILED_ATTENTION_CASES(X)                                                     \
  X(b77, "B77 a window without causal, with keys to the right, cut")                           \
  X(b82, "B82 rows that stand outside every window give 0 and -inf")

namespace heddle_tests {

#define HEDDLE_DECLARE_CASE(function, name) Found function(heddle::Engine& engine);
HEDDLE_ATTENTION_CASES(HEDDLE_DECLARE_CASE)
HEDDLE_COMPILED_ATTENTION_CASES(HEDDLE_DECLARE_CASE)
#undef HEDDLE_DECLARE_CASE

}  // namespace heddle_tests
