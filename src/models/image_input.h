#pragma once

#include <cstdint>
#include <string_view>

namespace at {
class Tensor;
}

namespace lockstep::models {

// The images that a model takes.
struct ImageInput {
  std::string_view model;  // for the error: "the Wide ResNet"
  int64_t channels;
  int64_t min_size;  // of height and of width
  int64_t max_size;
};

// ConfigError that names what is expected and what came: not [N, channels, height, width].
void check_images(const ImageInput& expected, const at::Tensor& images);

}  // namespace lockstep::models
