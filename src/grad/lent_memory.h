#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace lockstep::grad {

// Which of the free blocks is lent to who needs so many bytes: the smallest that fits, and
// not one that wastes more than it serves. nullopt: a new one is made.
std::optional<size_t> pick_block(const std::vector<int64_t>& free_bytes, int64_t needed_bytes);

// Memory for tensors that need it for a part of a step only. A borrower and all its
// views stay the same tensors; their storage is empty between take_back() and the next
// lend(), and nobody may read them then: kernels do not look. What was lent once is kept for
// the next borrower of about its size, so that a step in its stride allocates nothing.
//
// One thread at a time. Borrowers may outlive it.
class LentMemory {
 public:
  // Memory comes from the group, so that collectives use it in place.
  explicit LentMemory(Communicator communicator) : communicator_(std::move(communicator)) {}
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Takes the memory of a flat tensor away for good: from here on it borrows.
  static void hollow(const at::Tensor& flat);
  static bool has_memory(const at::Tensor& flat);

  // REQUIRES: hollow. The content is undefined.
  void lend(const at::Tensor& flat);
  void take_back(const at::Tensor& flat);

  // Gives up what nobody borrows.
  void forget_free();

  // Held in all, lent or not.
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor find(const at::Tensor& flat);

  Communicator communicator_;
  std::vector<at::Tensor> free_;
  std::unordered_map<const void*, at::Tensor> lent_;  // by the storage that borrows
  int64_t bytes_ = 0;
};

}  // namespace lockstep::grad
