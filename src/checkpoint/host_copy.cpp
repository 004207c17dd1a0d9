#include "checkpoint/host_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace lockstep::checkpoint {

Snapshot HostCopy::copy(const Snapshot& snapshot) {
  const at::NoGradGuard no_grad;
  Snapshot result = snapshot;
  buffers_.resize(snapshot.pieces.size());
  for (size_t i = 0; i < snapshot.pieces.size(); ++i) {
    const at::Tensor content = snapshot.pieces[i].content();
    at::Tensor& buffer = buffer_for(i, content);
    buffer.copy_(content, /*non_blocking=*/true);
    result.pieces[i].data = buffer;
    result.pieces[i].read = nullptr;
  }
  wait_for_devices(snapshot.pieces);
  return result;
}

at::Tensor& HostCopy::buffer_for(size_t index, const at::Tensor& data) {
  at::Tensor& buffer = buffers_[index];
  const bool pinned = data.is_cuda();
  const bool fits = buffer.defined() && buffer.scalar_type() == data.scalar_type() &&
                    buffer.sizes() == data.sizes() && (!pinned || buffer.is_pinned());
  if (!fits) {
    buffer = at::Tensor();  // freed before the new one is there
    buffer = at::empty(data.sizes(), at::TensorOptions().dtype(data.scalar_type()).pinned_memory(pinned));
  }
  return buffer;
}

int64_t HostCopy::bytes() const {
  int64_t result = 0;
  for (const at::Tensor& buffer : buffers_) result += static_cast<int64_t>(buffer.nbytes());
  return result;
}

}  // namespace lockstep::checkpoint
