#include "parallel/flat_buffer.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace lockstep::parallel {

namespace {

c10::StorageImpl& storage_of(const at::Tensor& flat) { return *flat.storage().unsafeGetStorageImpl(); }

size_t bytes_needed(const at::Tensor& flat) {
  return static_cast<size_t>(flat.storage_offset() + flat.numel()) * flat.element_size();
}

void release_block(void* block) { delete static_cast<at::Tensor*>(block); }

// Not a view for autograd: optimizers call detach_() on gradients, which autograd forbids for
// views.
at::Tensor share_storage(const at::Tensor& flat, const at::Tensor& like, int64_t offset) {
  at::Tensor view = at::empty({0}, flat.options());
  // No strides means row-major.
  const at::IntArrayRef strides = like.is_non_overlapping_and_dense() ? like.strides() : at::IntArrayRef();
  return view.set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
}

FlatBuffer with_views(at::Tensor flat, const BucketLayout& layout,
                      const std::vector<at::Tensor>& parameters) {
  FlatBuffer buffer{std::move(flat), {}};
  buffer.views.reserve(layout.slots.size());
  for (const BucketSlot& slot : layout.slots) {
    buffer.views.push_back(share_storage(buffer.flat, parameters[slot.item], slot.offset));
  }
  return buffer;
}

// Parameters may still be on another device than their bucket.
at::Tensor like_of(const BucketLayout& layout) {
  return at::empty({0}, at::TensorOptions(layout.dtype).device(layout.device));
}

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

// The storage owns a reference: a view that outlives the lender stays readable.
void LentMemory::attach(const at::Tensor& flat, void* memory, const at::Tensor& owner) {
  c10::StorageImpl& storage = storage_of(flat);
  storage.set_data_ptr_noswap({memory, new at::Tensor(owner), &release_block, flat.device()});
  storage.set_nbytes(bytes_needed(flat));
}

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
  attach(flat, block.mutable_data_ptr(), block);
  lent_.emplace(&storage_of(flat), std::move(block));
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

FlatBuffer make_flat_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters,
                            const Communicator& communicator) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = communicator.allocate(layout.numel, like_of(layout));
  clear(flat);
  return with_views(std::move(flat), layout, parameters);
}

FlatBuffer make_hollow_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  // Views must fit into their storage when they are made. This memory is never touched.
  FlatBuffer buffer = with_views(at::empty({layout.numel}, like_of(layout).options()), layout, parameters);
  LentMemory::hollow(buffer.flat);
  return buffer;
}

void clear(const at::Tensor& gradient) {
  // Both parts: fill_ would set the imaginary one to +0.
  (gradient.is_complex() ? at::view_as_real(gradient) : gradient).fill_(-0.0);
}

}  // namespace lockstep::parallel
