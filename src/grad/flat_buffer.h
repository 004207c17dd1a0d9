#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <vector>

#include "grad/bucket_plan.h"

namespace lockstep::grad {

// One flat tensor in memory that the group reduces without copying, and a view of
// it for each parameter of the bucket.
struct FlatBuffer {
  at::Tensor flat;
  // views[i] belongs to layout.slots[i]: the parameter's sizes and, where they are
  // dense, its strides, so that optimizer kernels run over both alike.
  std::vector<at::Tensor> views;
};

// `parameters` are those that the layout's items index, on any device. The buffer is cleared.
FlatBuffer make_flat_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters,
                            const Communicator& communicator);

// The same without memory, for LentMemory.
FlatBuffer make_hollow_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters);

// Fills with negative zero, the exact identity of addition: 0.0 + -0.0 would lose
// the sign and with it the bit-for-bit equality with a gradient that was not added
// to anything.
void clear(const at::Tensor& gradient);

}  // namespace lockstep::grad
