#pragma once

#include <lockstep/error.h>

#include <string_view>

#include "base/safetensors.h"
#include "base/tensor_file.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// .npy, .npz and safetensors.
inline bool takes_tensor_file(std::string_view bytes) {
  static MemoryFile file;
  file.write(bytes);
  try {
    uint64_t sum = 0;
    for (const base::FileTensor& tensor : base::read_tensor_file(file.path(), "data")) {
      require(base::shape_bytes(tensor.shape, base::tensor_dtype_bytes(tensor.dtype)) ==
                  static_cast<int64_t>(tensor.bytes.size()),
              "a tensor has the bytes of its shape");
      for (const uint8_t byte : tensor.bytes) sum += byte;
    }
    require(sum != UINT64_MAX, "every byte can be read");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
