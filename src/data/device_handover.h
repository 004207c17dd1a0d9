#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <lockstep/dataset.h>

#include <optional>

namespace lockstep::data {

// The work that one thread has given to a device for a batch, so that another thread may use the
// batch: each thread has a stream of its own there, and streams do not wait for each other.
class DeviceHandover {
 public:
  DeviceHandover() = default;  // nothing to wait for
  // In the thread that has made the batch, once all work for it is started.
  explicit DeviceHandover(const Batch& batch);

  // In the thread that uses the batch: its stream waits, and the host does not. The batch's memory
  // goes to nobody else before that stream is done with it.
  void take(const Batch& batch) const;

 private:
  std::optional<c10::Stream> stream_;  // none: the batch is in host memory
  std::optional<c10::Event> made_;
};

}  // namespace lockstep::data
