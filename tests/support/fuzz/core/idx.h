#pragma once

#include <lockstep/image_files.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/fuzz/image_set.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// Two IDX files: the first byte is the length of the labels, which come before the images.
inline bool takes_idx(std::string_view bytes) {
  static MemoryFile images, labels;
  const size_t length = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]);
  bytes.remove_prefix(std::min<size_t>(bytes.size(), 1));
  labels.write(bytes.substr(0, length));
  images.write(bytes.substr(std::min(length, bytes.size())));
  return takes_image_set([] { return open_idx(images.path(), labels.path()); });
}

}  // namespace lockstep::fuzz
