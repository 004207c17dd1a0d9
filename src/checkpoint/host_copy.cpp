#include "checkpoint/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>

namespace lockstep::checkpoint {

Snapshot HostCopy::copy(const Snapshot& snapshot) {
  const at::NoGradGuard no_grad;
  Snapshot result{.step = snapshot.step,
                  .epoch = snapshot.epoch,
                  .world_size = snapshot.world_size,
                  .metric = snapshot.metric,
                  .metadata = snapshot.metadata};
  buffers_.resize(snapshot.pieces.size());
  std::set<c10::Device, decltype([](c10::Device a, c10::Device b) {
             return std::tuple(a.type(), a.index()) < std::tuple(b.type(), b.index());
           })>
      devices;
  for (size_t i = 0; i < snapshot.pieces.size(); ++i) {
    const TensorPiece& piece = snapshot.pieces[i];
    at::Tensor& buffer = buffer_for(i, piece.data);
    buffer.copy_(piece.data, /*non_blocking=*/true);
    if (!piece.data.is_cpu()) devices.insert(piece.data.device());
    result.pieces.push_back(
        {.name = piece.name, .data = buffer, .shape = piece.shape, .first_element = piece.first_element});
  }
  for (const c10::Device device : devices) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
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
