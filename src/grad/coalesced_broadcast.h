#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <vector>

namespace lockstep::grad {

// Copies the root's values into the tensors of every rank, small ones together as bytes
// whatever their dtypes. Blocks. The tensors have the same sizes, dtypes and strides in the
// same order everywhere. Takes some 2 MiB, or the largest tensor that is not row-major, of
// temporary memory.
void broadcast_coalesced(const std::vector<at::Tensor>& tensors, const Communicator& communicator,
                         int root = 0);

}  // namespace lockstep::grad
