#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lockstep::shard {

// Flat tensors in host memory that live as long as a model.
//
// LibTorch rounds every page-locked allocation up to a power of two: those are parts of few
// large ones here.
class HostMemory {
 public:
  // `expected_bytes` is about what will be asked for in all.
  HostMemory(bool pinned, int64_t expected_bytes) : pinned_(pinned), expected_bytes_(expected_bytes) {}

  // Aligned to 64 bytes; the content is undefined. ConfigError: there is no page-locked
  // memory left.
  at::Tensor allocate(int64_t numel, c10::ScalarType dtype);

 private:
  at::Tensor allocate_bytes(int64_t bytes) const;

  const bool pinned_;
  int64_t expected_bytes_;  // still to come
  at::Tensor slab_;
  int64_t used_bytes_ = 0;  // of the slab
};

}  // namespace lockstep::shard
