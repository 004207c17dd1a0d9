#pragma once

#include <lockstep/image_files.h>

#include <string_view>

#include "support/fuzz/image_set.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// CIFAR-100 as a tar archive, plain or compressed.
inline bool takes_image_archive(std::string_view bytes) {
  static MemoryFile file;
  file.write(bytes);
  return takes_image_set([] { return open_cifar100(file.path(), Split::kTrain); });
}

}  // namespace lockstep::fuzz
