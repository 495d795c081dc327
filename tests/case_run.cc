#include "tests/case_run.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/driver.h"
#include "tools/half.h"

namespace heddle_tests {

using namespace heddle;

namespace {

bool on_gpu(const Engine& engine) { return engine.device().kind == DeviceKind::cuda; }

void copy_bytes(const Engine& engine, void* to, const void* from, std::size_t bytes,
                bool to_device) {
  if (!on_gpu(engine))
    std::memcpy(to, from, bytes);
  else if (to_device)
    copy_to_device(to, from, bytes);
  else
    copy_to_host(to, from, bytes);
}

// Calls with the offset and the length of each stretch that is contiguous, in elements.
void for_stretches(const Tensor& t,
                   const std::function<void(std::int64_t, std::int64_t)>& stretch) {
  const bool rows = t.strides[t.rank - 1] == 1;
  const int axes = rows ? t.rank - 1 : t.rank;
  const auto extent = [&](int axis) { return axis < axes ? t.shape[axis] : 1; };
  const auto stride = [&](int axis) { return axis < axes ? t.strides[axis] : 0; };
  for (std::int64_t a = 0; a < extent(0); ++a)
    for (std::int64_t b = 0; b < extent(1); ++b)
      for (std::int64_t c = 0; c < extent(2); ++c)
        stretch(a * stride(0) + b * stride(1) + c * stride(2), rows ? t.shape[t.rank - 1] : 1);
}

std::shared_ptr<void> reserve(const Engine& engine, std::size_t bytes) {
  if (on_gpu(engine)) {
    auto memory = std::make_shared<DeviceBuffer>(bytes);
    return {memory, memory->data()};
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail(ErrorKind::io, "{} bytes of address space could not be had.", bytes);
  return {memory, [bytes](void* address) { munmap(address, bytes); }};
}

std::vector<double> rows_of(const Engine& engine, const Tensor& tensor, int rows) {
  Tensor part = tensor;
  part.shape[0] = rows;
  const std::vector<std::byte> bytes = elements_of(engine, part);
  std::vector<double> values(bytes.size() / std::size_t(bytes_of(tensor.dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    float wide;
    std::uint16_t half;
    if (tensor.dtype == DType::f32) {
      std::memcpy(&wide, &bytes[i * 4], 4);
      values[i] = wide;
    } else {
      std::memcpy(&half, &bytes[i * 2], 2);
      values[i] = tools::to_float(half, tensor.dtype);
    }
  }
  return values;
}

}  // namespace

CaseRun::CaseRun(Engine& e, const AttentionConfig& config, const ProblemShape& shape,
                 std::uint64_t seed)
    : engine(e),
      attention(e.attention(config)),
      problem(e, shape, seed),
      workspace(attention.workspace(problem.maxima())) {}

void CaseRun::plan() {
  attention.plan(problem.batch(), workspace, nullptr, problem.shape().params);
}

void CaseRun::run(const Tensors& tensors) {
  attention.run(workspace, tensors, problem.shape().params);
  if (on_gpu(engine)) synchronize(nullptr);
}

Found CaseRun::judge() {
  problem.poison_output();
  plan();
  run(problem.tensors());
  return problem.judge().what;
}

std::vector<double> CaseRun::o() const {
  return rows_of(engine, problem.tensors().o, problem.batch().qo_indptr.back());
}
std::vector<double> CaseRun::lse() const {
  return rows_of(engine, problem.tensors().lse, problem.batch().qo_indptr.back());
}

bool CaseRun::is_cut() const {
  return workspace.summary().joins[0] + workspace.summary().joins[1] > 0;
}

Found judge_all(Engine& engine, const std::vector<ProblemShape>& shapes) {
  std::uint64_t seed = 0;
  for (const ProblemShape& shape : shapes) {
    if (const Found found = CaseRun(engine, shape, ++seed).judge(); !found.empty()) return found;
  }
  return {};
}

std::vector<std::byte> elements_of(const Engine& engine, const Tensor& tensor) {
  const std::int64_t size = bytes_of(tensor.dtype);
  std::vector<std::byte> all;
  for_stretches(tensor, [&](std::int64_t offset, std::int64_t length) {
    const std::size_t bytes = std::size_t(length * size);
    all.resize(all.size() + bytes);
    copy_bytes(engine, all.data() + all.size() - bytes,
               static_cast<const std::byte*>(tensor.data) + offset * size, bytes, false);
  });
  return all;
}

std::vector<std::int64_t> Relaid::tight(const Tensor& source) {
  std::vector<std::int64_t> strides(std::size_t(source.rank), 1);
  for (int axis = source.rank - 2; axis >= 0; --axis)
    strides[std::size_t(axis)] = strides[std::size_t(axis) + 1] * source.shape[axis + 1];
  return strides;
}

Relaid::Relaid(const Engine& engine, const Tensor& source, const std::vector<std::int64_t>& strides,
               std::int64_t lead)
    : tensor_(source) {
  std::int64_t last = lead;
  for (int axis = 0; axis < source.rank; ++axis) {
    tensor_.strides[axis] = strides[std::size_t(axis)];
    last += (source.shape[axis] - 1) * tensor_.strides[axis];
  }
  const std::int64_t size = bytes_of(source.dtype);
  memory_ = reserve(engine, std::size_t((last + 1) * size));
  std::byte* first = static_cast<std::byte*>(memory_.get()) + lead * size;
  tensor_.data = first;
  const std::vector<std::byte> all = elements_of(engine, source);
  std::size_t at = 0;
  for_stretches(tensor_, [&](std::int64_t offset, std::int64_t length) {
    const std::size_t bytes = std::size_t(length * size);
    copy_bytes(engine, first + offset * size, all.data() + at, bytes, true);
    at += bytes;
  });
}

Found same_bits(CaseRun& run, const std::function<void(Tensors&)>& relay) {
  if (const Found found = run.judge(); !found.empty()) return found;
  Tensors tensors = run.problem.tensors();
  const std::vector<std::byte> o = elements_of(run.engine, tensors.o);
  const bool has_lse = tensors.lse.data != nullptr;
  const std::vector<std::byte> lse =
      has_lse ? elements_of(run.engine, tensors.lse) : std::vector<std::byte>();
  run.problem.poison_output();
  relay(tensors);
  run.run(tensors);
  if (elements_of(run.engine, tensors.o) != o)
    return "the layout changes o: " + run.problem.shape().describe();
  if (has_lse && elements_of(run.engine, tensors.lse) != lse)
    return "the layout changes lse: " + run.problem.shape().describe();
  return {};
}

}  // namespace heddle_tests
