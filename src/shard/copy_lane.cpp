#include "shard/copy_lane.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::shard {

namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

CopyLane::CopyLane(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

void CopyLane::Mark::wait_on_device() const {
  if (event_) event_->block(current_stream(*device_));
}

void CopyLane::Mark::wait() const {
  if (event_) event_->synchronize();
}

void CopyLane::follow_current() const {
  c10::Event event(device_.type());
  event.record(current_stream(device_));
  event.block(*stream_);
}

CopyLane::Mark CopyLane::mark() const {
  Mark mark;
  mark.device_ = device_;
  mark.event_ = std::make_shared<c10::Event>(device_.type());
  mark.event_->record(*stream_);
  return mark;
}

CopyLane::Mark CopyLane::copy(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  if (is_plain()) {
    to.copy_(from);
    return {};
  }
  follow_current();
  const c10::StreamGuard guard(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  // The allocator must not give it to somebody else before the copy is done.
  for (const at::Tensor& tensor : {to, from}) {
    if (!tensor.is_cpu()) tensor.record_stream(*stream_);
  }
  return mark();
}

void CopyLane::finish() {
  if (stream_) stream_->synchronize();
}

}  // namespace lockstep::shard
