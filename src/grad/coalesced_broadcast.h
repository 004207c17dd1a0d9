#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <vector>

namespace lockstep::grad {

// Copies the root's values into the tensors of every rank, in few large broadcasts
// of bytes whatever their dtypes. Blocks. The tensors have the same sizes and
// dtypes in the same order everywhere and may have any strides. Takes at most
// 64 MiB, or the largest tensor, of temporary memory.
void broadcast_coalesced(const std::vector<at::Tensor>& tensors, const Communicator& communicator,
                         int root = 0);

}  // namespace lockstep::grad
