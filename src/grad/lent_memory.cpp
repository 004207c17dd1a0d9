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

std::optional<size_t> pick_block(const std::vector<int64_t>& free_bytes, int64_t needed_bytes) {
  std::optional<size_t> best;
  for (size_t i = 0; i < free_bytes.size(); ++i) {
    const bool fits = free_bytes[i] >= needed_bytes && free_bytes[i] <= 2 * needed_bytes;
    if (fits && (!best || free_bytes[i] < free_bytes[*best])) best = i;
  }
  return best;
}

void LentMemory::hollow(const at::Tensor& flat) { storage_of(flat).reset(); }

bool LentMemory::has_memory(const at::Tensor& flat) { return storage_of(flat).nbytes() > 0; }

at::Tensor LentMemory::find(const at::Tensor& flat) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& block : free_) {
    bytes.push_back(block.device() == flat.device() ? static_cast<int64_t>(block.nbytes()) : 0);
  }
  if (const auto found = pick_block(bytes, static_cast<int64_t>(bytes_needed(flat)))) {
    at::Tensor block = std::move(free_[*found]);
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(*found));
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
