#pragma once

#include <lockstep/image_files.h>

#include <string_view>

#include "support/fuzz/image_set.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

inline bool takes_hdf5(std::string_view bytes) {
  static MemoryFile file;
  file.write(bytes);
  return takes_image_set([] { return open_hdf5(file.path()); });
}

}  // namespace lockstep::fuzz
