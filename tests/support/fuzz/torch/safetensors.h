#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>

#include "checkpoint/error.h"
#include "checkpoint/safetensors.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// All that a reader does with a safetensors file.
inline bool takes_safetensors(std::string_view bytes) {
  static MemoryFile file;
  try {
    const checkpoint::SafetensorsFile tensors(file.write(bytes));
    size_t data = 0;
    for (const std::string& name : tensors.names()) data += tensors.read(name).nbytes();
    require(data <= bytes.size(), "tensors are in the file");
    return true;
  } catch (const checkpoint::CheckpointError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
