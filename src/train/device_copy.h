#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <lockstep/dataset.h>

#include <optional>

namespace lockstep::train {

// Brings batches to a rank's device. What goes to a GPU is copied on a stream of its own,
// beside the step that the GPU still computes: the stream that computes waits for the copy,
// and the host for neither where the memory is pinned. One thread at a time.
class DeviceCopy {
 public:
  DeviceCopy(c10::Device device, c10::ScalarType dtype);

  // The batch on the device, floating-point tensors in the dtype: for use on the stream that
  // is this thread's now. What is there already stays as it is.
  Batch operator()(const Batch& batch);

 private:
  void start(Batch& batch, const c10::Stream& user) const;

  const c10::Device device_;
  const c10::ScalarType dtype_;
  std::optional<c10::Stream> stream_;  // on GPUs
  std::optional<c10::Event> copied_;
};

}  // namespace lockstep::train
