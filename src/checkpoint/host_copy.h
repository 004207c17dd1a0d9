#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "checkpoint/snapshot.h"

namespace lockstep::checkpoint {

// Host memory that snapshots are copied into, kept from one to the next: pinned for
// tensors of a GPU, so that their copies overlap.
class HostCopy {
 public:
  // The same snapshot with its tensors in this object's memory, contiguous. Blocks until
  // the copies are there. Valid until the next call.
  Snapshot copy(const Snapshot& snapshot);

  int64_t bytes() const;

 private:
  at::Tensor& buffer_for(size_t index, const at::Tensor& data);

  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::checkpoint
