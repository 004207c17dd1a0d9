#pragma once

#include <lockstep/image_files.h>

#include <cstddef>
#include <string_view>

#include "support/fuzz/image_set.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// Two .npy files, of images and of labels: the second begins at the last magic number.
inline bool takes_npy(std::string_view bytes) {
  static MemoryFile images, labels;
  const size_t second = bytes.rfind("\x93NUMPY");
  const size_t cut = second == std::string_view::npos ? bytes.size() : second;
  images.write(bytes.substr(0, cut));
  labels.write(bytes.substr(cut));
  return takes_image_set([] { return open_npy(images.path(), labels.path()); });
}

}  // namespace lockstep::fuzz
