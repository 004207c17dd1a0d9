#include "checkpoint/snapshot.h"

#include <utility>

namespace lockstep::checkpoint {

TensorPiece TensorPiece::whole(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name), .data = tensor, .shape = tensor.sizes().vec(), .first_element = 0};
}

TensorPiece TensorPiece::part(std::string name, const at::Tensor& data, std::vector<int64_t> shape,
                              int64_t first_element) {
  return {.name = std::move(name), .data = data, .shape = std::move(shape), .first_element = first_element};
}

bool TensorPiece::is_whole() const { return first_element == 0 && data.sizes() == at::IntArrayRef(shape); }

}  // namespace lockstep::checkpoint
