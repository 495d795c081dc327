// Streams, events and graphs.
#include "runtime/cuda_table.h"

namespace heddle {

StreamHandle StreamHandle::create() {
  StreamHandle handle;
  handle.context_ = current_context();
  CUstream stream = nullptr;
  check(cuda().StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  handle.stream_ = stream;
  return handle;
}

StreamHandle::~StreamHandle() {
  if (stream_ == nullptr) return;
  const ContextScope scope(context_);
  if (scope.active()) cuda_table->StreamDestroy(native(stream_));
}

StreamHandle::StreamHandle(StreamHandle&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)), context_(other.context_) {}

StreamHandle& StreamHandle::operator=(StreamHandle&& other) noexcept {
  std::swap(stream_, other.stream_);
  std::swap(context_, other.context_);
  return *this;
}

void StreamHandle::synchronize() const { heddle::synchronize(stream_); }

EventHandle EventHandle::create(bool timed) {
  EventHandle handle;
  handle.context_ = current_context();
  CUevent event = nullptr;
  check(cuda().EventCreate(&event, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  handle.event_ = event;
  return handle;
}

EventHandle::~EventHandle() {
  if (event_ == nullptr) return;
  const ContextScope scope(context_);
  if (scope.active()) cuda_table->EventDestroy(static_cast<CUevent>(event_));
}

EventHandle::EventHandle(EventHandle&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), context_(other.context_) {}

EventHandle& EventHandle::operator=(EventHandle&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(context_, other.context_);
  return *this;
}

void EventHandle::record(Stream stream) const {
  check(cuda().EventRecord(static_cast<CUevent>(event_), native(stream)), "cuEventRecord");
}

void EventHandle::synchronize() const {
  const RelaxedCaptureScope relaxed;
  check(cuda().EventSynchronize(static_cast<CUevent>(event_)), "cuEventSynchronize");
}

bool EventHandle::reached() const {
  const RelaxedCaptureScope relaxed;
  const CUresult result = cuda().EventQuery(static_cast<CUevent>(event_));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuEventQuery");
  return true;
}

float elapsed_ms(const EventHandle& begin, const EventHandle& end) {
  float ms = 0;
  check(cuda().EventElapsedTime(&ms, static_cast<CUevent>(begin.get()),
                                static_cast<CUevent>(end.get())),
        "cuEventElapsedTime");
  return ms;
}

void synchronize(Stream stream) {
  check(cuda().StreamSynchronize(native(stream)), "cuStreamSynchronize");
}

void stream_wait_event(Stream stream, const EventHandle& event) {
  check(cuda().StreamWaitEvent(native(stream), static_cast<CUevent>(event.get()),
                               CU_EVENT_WAIT_DEFAULT),
        "cuStreamWaitEvent");
}

bool is_capturing(Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = cuda().StreamIsCapturing(native(stream), &status);
  // The legacy stream while another stream captures: it cannot be captured itself.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Graph::begin_capture(Stream stream, CaptureMode mode) {
  check(cuda().StreamBeginCapture(native(stream), mode == CaptureMode::thread
                                                      ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                                      : CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture");
}

Graph Graph::end_capture(Stream stream) {
  CUgraph graph = nullptr;
  check(cuda().StreamEndCapture(native(stream), &graph), "cuStreamEndCapture");
  Graph result;
  result.graph_ = graph;
  check(cuda().GraphGetNodes(graph, nullptr, &result.num_nodes_), "cuGraphGetNodes");
  CUgraphExec exec = nullptr;
  check(cuda().GraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  result.exec_ = exec;
  return result;
}

Graph::~Graph() {
  if (cuda_table == nullptr) return;
  if (exec_ != nullptr) cuda_table->GraphExecDestroy(static_cast<CUgraphExec>(exec_));
  if (graph_ != nullptr) cuda_table->GraphDestroy(static_cast<CUgraph>(graph_));
}

Graph::Graph(Graph&& other) noexcept
    : graph_(std::exchange(other.graph_, nullptr)),
      exec_(std::exchange(other.exec_, nullptr)),
      num_nodes_(std::exchange(other.num_nodes_, 0)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(graph_, other.graph_);
  std::swap(exec_, other.exec_);
  std::swap(num_nodes_, other.num_nodes_);
  return *this;
}

void Graph::launch(Stream stream) const {
  check(cuda().GraphLaunch(static_cast<CUgraphExec>(exec_), native(stream)), "cuGraphLaunch");
}

}  // namespace heddle
