#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/image_transform.h>

#include <array>

namespace lockstep::data {

c10::ScalarType scalar_type_of(ImageTransform::Type type);

// [count, C, H, W] with the transform's memory format and type, its values not set.
at::Tensor empty_images(const ImageTransform& transform, int64_t count, const std::array<int64_t, 3>& shape,
                        bool pinned);

}  // namespace lockstep::data
