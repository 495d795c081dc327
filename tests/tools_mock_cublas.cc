// A libcublas.so.13 that multiplies nothing, for the command on the mock driver. MOCK_CUBLAS=CODE:
// every product is answered with that status.
#include <cstdlib>

extern "C" {
int cublasCreate_v2(void** handle) { return *handle = handle, 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, std::size_t) { return 0; }
int cublasGemmEx(void*, int, int, int, int, int, const void*, const void*, int, int, const void*,
                 int, int, const void*, void*, int, int, int, int) {
  const char* code = std::getenv("MOCK_CUBLAS");
  return code != nullptr ? std::atoi(code) : 0;
}
}
