#include "data/image_tensor.h"

#include <ATen/ops/empty.h>

namespace lockstep::data {

c10::ScalarType scalar_type_of(ImageTransform::Type type) {
  switch (type) {
    case ImageTransform::Type::kFloat32: return at::kFloat;
    case ImageTransform::Type::kFloat16: return at::kHalf;
    case ImageTransform::Type::kBFloat16: return at::kBFloat16;
    default: return at::kByte;
  }
}

at::Tensor empty_images(const ImageTransform& transform, int64_t count, const std::array<int64_t, 3>& shape,
                        bool pinned) {
  const auto options = at::TensorOptions(scalar_type_of(transform.type)).pinned_memory(pinned);
  const auto format = transform.layout == ImageTransform::Layout::kChannelsLast
                          ? at::MemoryFormat::ChannelsLast
                          : at::MemoryFormat::Contiguous;
  return at::empty({count, shape[0], shape[1], shape[2]}, options, format);
}

}  // namespace lockstep::data
