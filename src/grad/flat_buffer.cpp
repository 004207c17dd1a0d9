#include "grad/flat_buffer.h"

#include <ATen/ATen.h>

#include "grad/lent_memory.h"

namespace lockstep::grad {

namespace {

// Not a view in autograd's sense: optimizers call detach_() on gradients, which
// autograd forbids for views.
at::Tensor share_storage(const at::Tensor& flat, const at::Tensor& like, int64_t offset) {
  at::Tensor part = at::empty({0}, flat.options());
  // No strides means row-major.
  const at::IntArrayRef strides = like.is_non_overlapping_and_dense() ? like.strides() : at::IntArrayRef();
  return part.set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
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

// Parameters may still be elsewhere than where their bucket is.
at::Tensor like_of(const BucketLayout& layout) {
  return at::empty({0}, at::TensorOptions(layout.dtype).device(layout.device));
}

}  // namespace

FlatBuffer make_flat_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters,
                            const Communicator& communicator) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = communicator.allocate(layout.numel, like_of(layout));
  clear(flat);
  return with_views(std::move(flat), layout, parameters);
}

FlatBuffer make_hollow_buffer(const BucketLayout& layout, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  // Views must fit into their storage when they are made; nobody touches this memory.
  FlatBuffer buffer = with_views(at::empty({layout.numel}, like_of(layout).options()), layout, parameters);
  LentMemory::hollow(buffer.flat);
  return buffer;
}

void clear(const at::Tensor& gradient) { gradient.fill_(-0.0); }

}  // namespace lockstep::grad
