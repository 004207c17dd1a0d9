#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <vector>

namespace lockstep::parallel {

// Copies the root's values into the tensors of every rank; small tensors of any dtype are sent together
// as bytes. Blocks. The tensors have the same sizes, dtypes and strides in the same order on all ranks.
// Needs about 2 MiB of temporary memory, or as much as the largest tensor that is not row-major.
void broadcast_coalesced(const std::vector<at::Tensor>& tensors, const Communicator& communicator,
                         int root = 0);

}  // namespace lockstep::parallel
