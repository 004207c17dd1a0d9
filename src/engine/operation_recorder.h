#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

#include "engine/operation_cost.h"

namespace lockstep::engine {

// Told of the operations of a thread, one after the other.
class OperationListener {
 public:
  virtual ~OperationListener() = default;
  // The inputs are there for this call only.
  virtual void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs) = 0;
  virtual void ended(std::chrono::nanoseconds time) = 0;
};

// While it lives, tells of the counted operations (cost_of) of the thread that made it; what
// they call inside is theirs. One at a time in a thread. Each operation is waited for on
// the device, so that its time is its own.
class OperationRecorder {
 public:
  // The listener outlives it.
  OperationRecorder(c10::Device device, OperationListener& listener);
  ~OperationRecorder();
  OperationRecorder(const OperationRecorder&) = delete;
  OperationRecorder& operator=(const OperationRecorder&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace lockstep::engine
