#pragma once

#include <filesystem>

#include "interop/named_tensors.h"

namespace lockstep::interop {

// All tensors of a safetensors file, in host memory. ConfigError names the file and what
// is wrong with it.
NamedTensors read_safetensors_file(const std::filesystem::path& path);

// Writes what Python opens with safetensors.torch.load_file. The format knows no shared
// memory: a tensor under two names is stored twice. The file appears whole or not at all.
// ConfigError: it cannot be written, or the format cannot hold a tensor, which it names.
void write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::interop
