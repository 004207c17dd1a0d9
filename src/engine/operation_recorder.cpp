#include "engine/operation_recorder.h"

#include <ATen/record_function.h>

#include <memory>

#include "comm/device_wait.h"

namespace lockstep::engine {
namespace {

using Clock = std::chrono::steady_clock;

struct Recording {
  c10::Device device;
  OperationListener& listener;
  bool is_inside = false;  // of a counted operation
};

// LibTorch's callbacks are plain functions, of one thread.
thread_local std::unique_ptr<Recording> recording;

struct Counted : at::ObserverContext {
  Clock::time_point began = Clock::now();
};

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (!recording || recording->is_inside) return nullptr;
  const auto cost = cost_of(function.name(), function.inputs());
  if (!cost) return nullptr;
  recording->listener.began(*cost, function.inputs());
  recording->is_inside = true;
  return std::make_unique<Counted>();
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr || !recording) return;
  comm::wait_for_device(recording->device);
  recording->listener.ended(Clock::now() - static_cast<Counted*>(context)->began);
  recording->is_inside = false;
}

}  // namespace

OperationRecorder::OperationRecorder(c10::Device device, OperationListener& listener) {
  recording = std::make_unique<Recording>(Recording{device, listener});
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_begin, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

OperationRecorder::~OperationRecorder() {
  at::removeCallback(handle_);
  recording = nullptr;
}

}  // namespace lockstep::engine
