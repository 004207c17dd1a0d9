#include "train/device_copy.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "train/batch_source.h"

namespace lockstep::train {
namespace {

bool is_on_host(const Batch& batch) {
  return std::any_of(batch.tensors.begin(), batch.tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_cpu(); }) ||
         std::any_of(batch.parts.begin(), batch.parts.end(),
                     [](const BatchPart& part) { return is_on_host(part.batch); });
}

}  // namespace

DeviceCopy::DeviceCopy(c10::Device device, c10::ScalarType dtype) : device_(device), dtype_(dtype) {
  if (!device.is_cuda()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  copied_.emplace(device.type());
}

Batch DeviceCopy::operator()(const Batch& batch) {
  if (!stream_ || !is_on_host(batch)) return to_device(batch, device_, dtype_);
  const c10::Stream user = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  Batch moved = batch;
  {
    const c10::StreamGuard guard(*stream_);
    start(moved, user);
    copied_->record(*stream_);
  }
  copied_->block(user);
  // What was on the device before belongs to the user's stream: it is converted there.
  return to_device(moved, device_, dtype_);
}

// Under a guard: memory and work are the copying stream's.
void DeviceCopy::start(Batch& batch, const c10::Stream& user) const {
  for (at::Tensor& tensor : batch.tensors) {
    if (!tensor.is_cpu()) continue;
    tensor = tensor.to(device_, /*non_blocking=*/true);
    if (tensor.is_floating_point()) tensor = tensor.to(dtype_);
    // The host lets go of the batch while the step still reads it: its memory must not go to
    // the next copy before that.
    tensor.record_stream(user);
  }
  for (BatchPart& part : batch.parts) start(part.batch, user);
}

}  // namespace lockstep::train
