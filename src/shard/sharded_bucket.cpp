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
                             const Communicator& communicator, Place place, bool resident, Homes homes)
    : layout_(layout), communicator_(communicator), place_(place), resident_(resident), homes_(homes) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  flat_ = resident ? grad::make_flat_buffer(layout, tensors, communicator_)
                   : grad::make_hollow_buffer(layout, tensors);
  for (const grad::BucketSlot& slot : layout.slots) {
    parameters_.push_back(parameters[slot.item]);
    originals_.push_back(parameters_.back().tensor.detach());
    came_from_.push_back(originals_.back().device());
  }
  if (resident) {
    fill(originals_);
    originals_.clear();  // at once: with those of all buckets the model would be there twice
  }
  show();
}

void ShardedBucket::fill(const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) flat_.views[i].copy_(values[i]);
}

void ShardedBucket::undo() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto dtype = flat_.views[i].scalar_type();
    parameters_[i].tensor.set_data(
        resident_ ? flat_.views[i].to(came_from_[i], dtype, /*non_blocking=*/false, /*copy=*/true)
                  : originals_[i]);
  }
  flat_ = {};
}

at::Tensor ShardedBucket::own_part(const at::Tensor& flat) const {
  const int64_t count = layout_.numel / place_.ranks;
  return leaf_over(flat, count * place_.rank, count);
}

void ShardedBucket::divide(grad::LentMemory& memory) {
  const at::NoGradGuard no_grad;
  if (!resident_) {
    memory.lend(flat_.flat);
    grad::clear(flat_.flat);
    fill(originals_);
  }
  originals_.clear();
  came_from_.clear();
  if (communicator_.size() > 1 && layout_.numel > 0) communicator_.broadcast(flat_.flat).wait();
  const bool needs_digits = needs_master(layout_.dtype);
  part_ = own_part(flat_.flat);
  if (!resident_) {
    const at::Tensor held = homes_.parameters != nullptr
                                ? homes_.parameters->allocate(part_.numel(), layout_.dtype)
                                : at::empty_like(part_);
    part_ = held.copy_(part_);
    release(memory);
  }
  // Memory that is offloaded itself serves as the master.
  const bool serves = !resident_ && homes_.parameters != nullptr && !needs_digits && !homes_.masters_leave;
  if (homes_.masters != nullptr && !serves) {
    master_ = homes_.masters->allocate(part_.numel(), master_type()).copy_(part_);
  } else {
    master_ = needs_digits ? part_.to(at::kFloat) : part_;
  }
}

c10::ScalarType ShardedBucket::master_type() const { return master_dtype(layout_.dtype); }

void ShardedBucket::take_update() {
  const at::NoGradGuard no_grad;
  if (is_apart()) part_.copy_(master_);
}

Work ShardedBucket::publish() {
  if (!resident_ || place_.ranks == 1) return {};
  return communicator_.all_gather(flat_.flat, part_);
}

Gather ShardedBucket::start_gather(grad::LentMemory& memory) {
  const at::NoGradGuard no_grad;
  memory.lend(flat_.flat);
  show();
  const bool crosses = part_.device() != flat_.flat.device();
  if (place_.ranks == 1) {
    if (crosses) return {.copy = homes_.lane->copy(flat_.flat, part_)};
    flat_.flat.copy_(part_);
    return {};
  }
  if (!crosses) return {.work = communicator_.all_gather(flat_.flat, part_)};
  const at::Tensor own = own_part(flat_.flat);
  homes_.lane->copy(own, part_).wait_on_device();
  return {.work = communicator_.all_gather(flat_.flat, own)};
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

bool ShardedBucket::may_be_written() const {
  return resident_ || !at::equal(own_part(flat_.flat).to(part_.device()), part_);
}

void ShardedBucket::adopt_whole() {
  const at::NoGradGuard no_grad;
  if (!resident_) part_.copy_(own_part(flat_.flat));
  adopt_part();
}

void ShardedBucket::adopt_part() {
  if (!is_apart()) return;
  const at::NoGradGuard no_grad;
  if (!has_master()) {
    master_.copy_(part_);
    return;
  }
  // What nobody wrote keeps the digits that 16 bits do not have.
  const at::Tensor written = part_.to(master_.device());
  const at::Tensor untouched = master_.to(part_.scalar_type()).eq(written);
  master_.copy_(at::where(untouched, master_, written.to(at::kFloat)));
}

}  // namespace lockstep::shard
