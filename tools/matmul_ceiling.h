// The ceiling that prefill is measured against: cuBLAS on one large bf16 product.
#pragma once

namespace heddle::tools {

// TFLOP/s of 8192 x 8192 x 8192. Requires: a CUDA device is current. Throws Error(unsupported)
// where there is no cuBLAS to load.
double matmul_tflops();

}  // namespace heddle::tools
