#pragma once

#include <lockstep/error.h>
#include <lockstep/exported_model.h>

#include <string_view>

#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// A .pt2 file of torch.export.save.
inline bool takes_exported_archive(std::string_view bytes) {
  static MemoryFile file;
  try {
    const ExportedModel model(file.write(bytes));
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
