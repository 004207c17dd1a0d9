#pragma once

#include <lockstep/error.h>
#include <lockstep/image_files.h>

#include <cstdint>
#include <vector>

#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// Reads every pixel and every label of what `open` returns.
template <typename Open>
bool takes_image_set(Open open) {
  try {
    const auto set = open();
    std::vector<uint8_t> scratch;
    uint64_t sum = 0;
    for (int64_t i = 0; i < set->size(); ++i) {
      const ImageView view = set->image(i, scratch);
      const int64_t bytes = int64_t{view.height} * view.width * view.channels;
      for (int64_t k = 0; k < bytes; ++k) sum += view.pixels[k];
      require(set->label(i) >= 0 && set->label(i) < set->num_classes(), "a label is one of the classes");
    }
    require(sum != UINT64_MAX, "every pixel can be read");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
