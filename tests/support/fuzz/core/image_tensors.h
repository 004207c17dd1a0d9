#pragma once

#include <lockstep/image_files.h>

#include <string_view>

#include "support/fuzz/image_set.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// A safetensors file with images and labels.
inline bool takes_image_tensors(std::string_view bytes) {
  static MemoryFile file;
  file.write(bytes);
  return takes_image_set([] { return open_safetensors(file.path()); });
}

}  // namespace lockstep::fuzz
