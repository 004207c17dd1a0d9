#include "data/device_handover.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>

namespace lockstep::data {
namespace {

void for_each_on_device(const Batch& batch, const std::function<void(const at::Tensor&)>& function) {
  for (const at::Tensor& tensor : batch.tensors) {
    if (tensor.defined() && tensor.is_cuda()) function(tensor);
  }
  for (const BatchPart& part : batch.parts) for_each_on_device(part.batch, function);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

DeviceHandover::DeviceHandover(const Batch& batch) {
  for_each_on_device(batch, [this](const at::Tensor& tensor) {
    if (!stream_) stream_ = current_stream(tensor.device());
  });
  if (!stream_) return;
  made_.emplace(stream_->device_type());
  made_->record(*stream_);
}

void DeviceHandover::take(const Batch& batch) const {
  if (!stream_) return;
  const c10::Stream user = current_stream(stream_->device());
  if (user == *stream_) return;
  made_->block(user);
  for_each_on_device(batch, [&user](const at::Tensor& tensor) { tensor.record_stream(user); });
}

}  // namespace lockstep::data
