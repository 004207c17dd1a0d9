#include "recipes/model_input.h"

#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/torch.h>

namespace lockstep::models {

void check_images(const ImageInput& expected, const at::Tensor& images) {
  if (images.dim() != 4) {
    throw ConfigError("models",
                      fmt::format("{} takes images as [N, {}, height, width]: got [{}]", expected.model,
                                  expected.channels, fmt::join(images.sizes(), ", ")));
  }
  if (images.size(1) != expected.channels) {
    throw ConfigError("models",
                      fmt::format("{} takes images of {} channels: got {}, in [{}]", expected.model,
                                  expected.channels, images.size(1), fmt::join(images.sizes(), ", ")));
  }
  for (const int64_t size : {images.size(2), images.size(3)}) {
    if (size >= expected.min_size && size <= expected.max_size) continue;
    const std::string range =
        expected.min_size == expected.max_size
            ? fmt::format("{0} x {0}", expected.min_size)
            : fmt::format("{0} x {0} to {1} x {1}", expected.min_size, expected.max_size);
    throw ConfigError("models", fmt::format("{} takes images of {} pixels: got {} x {}", expected.model,
                                            range, images.size(2), images.size(3)));
  }
}

}  // namespace lockstep::models
