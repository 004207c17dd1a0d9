#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>

#include "checkpoint/pickle.h"

namespace lockstep::checkpoint {

// Makes the tensors that a file describes. Tensors of one storage share its memory.
class StoredTensors {
 public:
  // Fills memory with all bytes of a storage.
  using Fetch = std::function<void(const std::string& key, void* memory, size_t bytes)>;
  // The bytes of this storage in the file.
  using Size = std::function<size_t(const std::string& key)>;

  // All storages together may take, and a tensor may span, at most `limit` bytes.
  StoredTensors(Size size, Fetch fetch, size_t limit, bool swap_bytes)
      : size_(std::move(size)), fetch_(std::move(fetch)), limit_(limit), swap_bytes_(swap_bytes) {}

  // PickleError names the tensor that does not fit its storage.
  NamedTensors make(const TensorReferences& references);

 private:
  const at::Tensor& storage(const TensorReference& reference);
  at::Tensor tensor(const TensorReference& reference);

  Size size_;
  Fetch fetch_;
  size_t limit_;
  bool swap_bytes_;
  size_t used_ = 0;
  std::unordered_map<std::string, at::Tensor> storages_;  // bytes
};

// Reads the state dict of a file that Python's torch.save wrote: a zip archive (PyTorch 1.6 and later)
// or the format before it. The tensors are in host memory, with their strides; tensors that shared
// memory share it again. Of a TorchScript archive: the parameters and buffers of its module. A module
// whose state its own code restores (__setstate__) is refused.
//
// Executes no code of the file, and the memory stays within the size of the file. ConfigError names the
// file and the reason.
NamedTensors read_torch_file(const std::filesystem::path& path);

// Writes a file that Python opens with torch.load(path, weights_only=True) as an OrderedDict of
// contiguous CPU tensors. A tensor under two names is stored once. A reader sees all of the file or
// nothing. ConfigError: it cannot be written, or a tensor is sparse or quantised.
void write_torch_file(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
