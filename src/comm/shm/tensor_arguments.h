#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "comm/shm/regions.h"
#include "comm/shm/work.h"

// From tensors to bytes: what the backend's operations have in common. All checks
// throw ConfigError, with the operation's name in the text.
namespace lockstep::comm::shm {

// Defined, dense, contiguous and on the CPU.
void check_tensor(const char* operation, const at::Tensor& tensor);
void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b);
// `whole` is `count` blocks like `block`.
void check_blocks(const char* operation, const at::Tensor& whole, const at::Tensor& block, int count);
void check_list(const char* operation, const std::vector<at::Tensor>& tensors, int count);
int check_root(const char* operation, int64_t root, int size);

// The one tensor, or the one list, that c10d wraps in a vector.
const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors);
const std::vector<at::Tensor>& only_list(const char* operation,
                                         const std::vector<std::vector<at::Tensor>>& lists, int count);

std::byte* bytes_of(const at::Tensor& tensor);
Call call_for(Kind kind, const at::Tensor& tensor, int root = 0);
void set_reduction(CollectiveWork& work, const c10d::ReduceOp& op);

// This rank contributes the tensor as `blocks` equal blocks. `exposes`: peers read
// it too, not this rank alone.
void expose(CollectiveWork& work, const at::Tensor& tensor, int blocks, bool exposes = true);
// The same with one tensor a block, each like `like`.
void expose_list(CollectiveWork& work, const std::vector<at::Tensor>& tensors, const at::Tensor& like);
// The results of each rank go to one of these, each like `like`.
void add_outputs(CollectiveWork& work, const std::vector<at::Tensor>& outputs, const at::Tensor& like);
void add_output_blocks(CollectiveWork& work, const at::Tensor& output, int blocks);
// Splits the first dimension as told, or evenly by an empty list.
void split_blocks(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                  c10::SmallVector<std::byte*, 2>& blocks, std::vector<uint64_t>& block_bytes);

// A flat tensor in memory of the group; in ordinary memory when it is empty or the
// group has no region left.
at::Tensor allocate_tensor(OwnRegions& regions, int64_t numel, const at::TensorOptions& options);

}  // namespace lockstep::comm::shm
