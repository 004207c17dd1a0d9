#include "grad/lent_memory.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace lockstep::grad {

namespace {

c10::StorageImpl& storage_of(const at::Tensor& flat) { return *flat.storage().unsafeGetStorageImpl(); }

size_t bytes_needed(const at::Tensor& flat) {
  return static_cast<size_t>(flat.storage_offset() + flat.numel()) * flat.element_size();
}

void release(void* block) { delete static_cast<at::Tensor*>(block); }

}  // namespace

void LentMemory::hollow(const at::Tensor& flat) { storage_of(flat).reset(); }

bool LentMemory::has_memory(const at::Tensor& flat) { return storage_of(flat).nbytes() > 0; }

// The smallest that fits, and not one that wastes more than it serves.
at::Tensor LentMemory::find(const at::Tensor& flat) {
  const size_t needed = bytes_needed(flat);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const bool fits = it->device() == flat.device() && it->nbytes() >= needed && it->nbytes() <= 2 * needed;
    if (fits && (best == free_.end() || it->nbytes() < best->nbytes())) best = it;
  }
  if (best != free_.end()) {
    at::Tensor block = std::move(*best);
    free_.erase(best);
    return block;
  }
  at::Tensor block = communicator_.allocate(flat.numel(), flat);
  bytes_ += static_cast<int64_t>(block.nbytes());
  return block;
}

void LentMemory::lend(const at::Tensor& flat) {
  base::check(!has_memory(flat), "memory is lent to a tensor that has some");
  if (flat.numel() == 0) return;
  at::Tensor block = find(flat);
  c10::StorageImpl& storage = storage_of(flat);
  // The storage owns a reference: a view that somebody kept stays readable whatever
  // becomes of this object.
  storage.set_data_ptr_noswap({block.mutable_data_ptr(), new at::Tensor(block), &release, flat.device()});
  storage.set_nbytes(bytes_needed(flat));
  lent_.emplace(&storage, std::move(block));
}

void LentMemory::take_back(const at::Tensor& flat) {
  const auto found = lent_.find(&storage_of(flat));
  if (found == lent_.end()) return;
  storage_of(flat).reset();
  free_.push_back(std::move(found->second));
  lent_.erase(found);
}

void LentMemory::forget_free() {
  for (const at::Tensor& block : free_) bytes_ -= static_cast<int64_t>(block.nbytes());
  free_.clear();
}

}  // namespace lockstep::grad
