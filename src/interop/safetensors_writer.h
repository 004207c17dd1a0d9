#pragma once

#include <filesystem>

#include <lockstep/named_tensors.h>

namespace lockstep::interop {

// Writes what Python opens with safetensors.torch.load_file. The format knows no shared
// memory: a tensor under two names is stored twice. The file appears whole or not at all.
// ConfigError: it cannot be written, or the format cannot hold a tensor, which it names.
void write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::interop
