#include "checkpoint/snapshot.h"

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

}  // namespace lockstep::checkpoint
