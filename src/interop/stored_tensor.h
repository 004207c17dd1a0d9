#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include <lockstep/named_tensors.h>
#include "interop/state_dict.h"

namespace lockstep::interop {

// How many bytes from its storage's begin a tensor reaches, and how many it would take if
// it were contiguous.
struct TensorExtent {
  uint64_t reach = 0;
  uint64_t bytes = 0;
};
// nullopt: more than 64 bits can say.
std::optional<TensorExtent> extent_of(const TensorReference& tensor);

// Makes tensors of what a file describes. Tensors of one storage share its memory.
class StoredTensors {
 public:
  // Fills memory with all bytes of a storage.
  using Fetch = std::function<void(const std::string& key, void* memory, size_t bytes)>;
  // How many bytes of this storage the file holds.
  using Size = std::function<size_t(const std::string& key)>;

  // Storages may take, and a tensor may span, at most `limit` bytes in all.
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

}  // namespace lockstep::interop
