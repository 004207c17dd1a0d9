#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallel/bucket_plan.h"

namespace lockstep::parallel {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Which free block to lend for so many bytes: the smallest that fits, and none of more than twice the
// size. nullopt: allocate a new one.
std::optional<size_t> pick_block(const std::vector<int64_t>& free_bytes, int64_t needed_bytes);

// Memory for tensors that need it only during a part of a step. A borrower and its views stay the same
// tensors. Their storage is empty between take_back() and the next lend(); reading them then is an
// error that kernels do not detect. Memory that was lent is kept for the next borrower of about its
// size: after the first steps nothing is allocated.
//
// One thread at a time. Borrowers may outlive it.
class LentMemory {
 public:
  // Memory comes from the group: collectives use it without copying.
  explicit LentMemory(Communicator communicator) : communicator_(std::move(communicator)) {}
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Frees the memory of a flat tensor, which borrows from here on.
  static void hollow(const at::Tensor& flat);
  static bool has_memory(const at::Tensor& flat);
  // Gives a tensor without memory that of `owner`, from `memory` on, and a reference to it.
  static void attach(const at::Tensor& flat, void* memory, const at::Tensor& owner);

  // REQUIRES: the tensor has no memory. The content is undefined.
  void lend(const at::Tensor& flat);
  void take_back(const at::Tensor& flat);

  // Frees memory that is not lent.
  void forget_free();

  // All that is held, lent or not.
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor find(const at::Tensor& flat);

  Communicator communicator_;
  std::vector<at::Tensor> free_;
  std::unordered_map<const void*, at::Tensor> lent_;  // by the storage that borrows
  int64_t bytes_ = 0;
};

// One flat tensor in memory that the group reduces without copying, and a view of it for each
// parameter of the bucket.
struct FlatBuffer {
  at::Tensor flat;
  // views[i] belongs to layout.slots[i]. It has the parameter's sizes and, where they are dense, its
  // strides: optimizer kernels then pass over both in the same order.
  std::vector<at::Tensor> views;
};

// `parameters` are those that the layout's items index, on any device. The buffer is cleared.
FlatBuffer make_flat_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters,
                            const Communicator& communicator);

// The same without memory: it borrows from a LentMemory.
FlatBuffer make_hollow_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters);

// Fills with negative zero, the exact identity of addition. With 0.0 the sum 0.0 + -0.0 would lose the
// sign, and differ from a gradient that was not added to anything.
void clear(const at::Tensor& gradient);

}  // namespace lockstep::parallel
