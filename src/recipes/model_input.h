#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstdint>
#include <string_view>

namespace lockstep::models {

// ConfigError that names the option of `model` and its value.
inline void require_positive(std::string_view model, std::string_view option, int64_t value) {
  if (value < 1) {
    throw ConfigError("models",
                      fmt::format("option '{}' of {} must be at least 1: {}", option, model, value));
  }
}

inline void require_probability(std::string_view model, std::string_view option, double value) {
  if (!(value >= 0 && value <= 1)) {
    throw ConfigError("models",
                      fmt::format("option '{}' of {} must be between 0 and 1: {}", option, model, value));
  }
}

}  // namespace lockstep::models

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
