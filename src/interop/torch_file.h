#pragma once

#include <filesystem>

#include <lockstep/named_tensors.h>

namespace lockstep::interop {

// The state dict that Python's torch.save wrote: a zip archive (PyTorch 1.6 and later) or
// the format before it. Tensors are in host memory, wherever they were saved from, with
// their strides; names that shared memory share it. A TorchScript archive gives the
// parameters and buffers of its module; one whose state its own code restores
// (__setstate__) is refused.
//
// No code of the file is executed, and memory stays within the file's size. ConfigError
// names the file and what is wrong with it.
NamedTensors read_torch_file(const std::filesystem::path& path);

// Writes what Python opens with torch.load(path, weights_only=True) as an OrderedDict of
// contiguous CPU tensors; the same tensor under two names is stored once. The file
// appears whole or not at all. ConfigError: it cannot be written, or a tensor is sparse
// or quantised.
void write_torch_file(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::interop
