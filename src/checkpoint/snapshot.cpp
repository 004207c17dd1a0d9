#include "checkpoint/snapshot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>
#include <utility>

namespace lockstep::checkpoint {

TensorPiece TensorPiece::whole(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name), .data = tensor, .shape = tensor.sizes().vec(), .first_element = 0};
}

TensorPiece TensorPiece::part(std::string name, const at::Tensor& data, std::vector<int64_t> shape,
                              int64_t first_element) {
  return {.name = std::move(name), .data = data, .shape = std::move(shape), .first_element = first_element};
}

void wait_for_devices(const std::vector<TensorPiece>& pieces) {
  std::set<c10::Device, bool (*)(c10::Device, c10::Device)> devices([](c10::Device a, c10::Device b) {
    return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
  });
  for (const TensorPiece& piece : pieces) {
    if (piece.data.defined() && !piece.data.is_cpu() && !piece.data.is_meta())
      devices.insert(piece.data.device());
  }
  for (const c10::Device device : devices) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
}

bool TensorPiece::is_whole() const { return first_element == 0 && data.sizes() == at::IntArrayRef(shape); }

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
    buffer = at::Tensor();  // free the old memory before the new is allocated
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
