#include "shard/sharded_bucket.h"

#include <ATen/ATen.h>

namespace lockstep::shard {

namespace {

// Optimizers want leaves, not views in autograd's sense.
at::Tensor leaf_over(const at::Tensor& flat, int64_t first, int64_t count) {
  at::Tensor leaf = at::empty({0}, flat.options());
  return leaf.set_(flat.storage(), flat.storage_offset() + first, {count});
}

}  // namespace

bool needs_master(c10::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

ShardedBucket::ShardedBucket(const grad::BucketLayout& layout, const std::vector<NamedParameter>& parameters,
                             const Communicator& communicator, Place place, bool resident)
    : layout_(layout), communicator_(communicator), place_(place), resident_(resident) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  flat_ = grad::make_flat_buffer(layout, tensors, communicator_);
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const NamedParameter& parameter = parameters[layout.slots[i].item];
    flat_.views[i].copy_(parameter.tensor);
    parameters_.push_back(parameter);
    parameters_.back().tensor.set_data(flat_.views[i]);
  }
}

at::Tensor ShardedBucket::own_part(const at::Tensor& flat) const {
  const int64_t count = layout_.numel / place_.ranks;
  return leaf_over(flat, count * place_.rank, count);
}

void ShardedBucket::divide() {
  const at::NoGradGuard no_grad;
  part_ = own_part(flat_.flat);
  if (!resident_) {
    part_ = part_.clone();
    grad::LentMemory::hollow(flat_.flat);
    hide();
  }
  master_ = needs_master(layout_.dtype) ? part_.to(at::kFloat) : part_;
}

void ShardedBucket::take_update() {
  const at::NoGradGuard no_grad;
  if (has_master()) part_.copy_(master_);
}

Work ShardedBucket::publish() {
  if (!resident_ || place_.ranks == 1) return {};
  return communicator_.all_gather(flat_.flat, part_);
}

Work ShardedBucket::start_gather(grad::LentMemory& memory) {
  const at::NoGradGuard no_grad;
  memory.lend(flat_.flat);
  show();
  if (place_.ranks > 1) return communicator_.all_gather(flat_.flat, part_);
  flat_.flat.copy_(part_);
  return {};
}

void ShardedBucket::release(grad::LentMemory& memory) {
  hide();
  memory.take_back(flat_.flat);
}

void ShardedBucket::show() {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.set_data(flat_.views[i]);
}

// Kernels do not look whether a tensor has memory: who reads a parameter at the wrong time
// must find one of another shape, not a null pointer.
void ShardedBucket::hide() {
  const at::Tensor nothing = at::empty({0}, flat_.flat.options());
  for (NamedParameter& parameter : parameters_) parameter.tensor.set_data(nothing);
}

void ShardedBucket::adopt_whole() {
  const at::NoGradGuard no_grad;
  if (!resident_) part_.copy_(own_part(flat_.flat));
  adopt_part();
}

void ShardedBucket::adopt_part() {
  if (!has_master()) return;
  const at::NoGradGuard no_grad;
  // What nobody wrote keeps the digits that 16 bits do not have.
  const at::Tensor untouched = master_.to(part_.scalar_type()).eq(part_);
  master_.copy_(at::where(untouched, master_, part_.to(at::kFloat)));
}

int64_t ShardedBucket::parameter_bytes() const {
  return static_cast<int64_t>(resident_ ? flat_.flat.nbytes() : part_.nbytes());
}

int64_t ShardedBucket::master_bytes() const {
  return has_master() ? static_cast<int64_t>(master_.nbytes()) : 0;
}

}  // namespace lockstep::shard
