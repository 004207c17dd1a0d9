#pragma once

#include <lockstep/error.h>
#include <torch/torch.h>

#include <string_view>

#include "checkpoint/torch_file.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// A .pt file: a zip archive of torch.save or of TorchScript, or the format before them.
inline bool takes_torch_file(std::string_view bytes) {
  static MemoryFile file;
  try {
    for (const auto& [name, tensor] : checkpoint::read_torch_file(file.write(bytes))) {
      tensor.clone(at::MemoryFormat::Contiguous);
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
