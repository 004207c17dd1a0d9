#include "parallel/sharded_bucket.h"

#include <ATen/ATen.h>

namespace lockstep::parallel {

namespace {

// Optimizers take leaves, not autograd's views.
at::Tensor leaf_over(const at::Tensor& flat, int64_t first, int64_t count) {
  at::Tensor leaf = at::empty({0}, flat.options());
  return leaf.set_(flat.storage(), flat.storage_offset() + first, {count});
}

}  // namespace

bool needs_master(c10::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

ShardedBucket::ShardedBucket(const BucketLayout& layout, const std::vector<NamedParameter>& parameters,
                             const Communicator& communicator, Place place, bool resident, Homes homes)
    : layout_(layout), communicator_(communicator), place_(place), resident_(resident), homes_(homes) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  flat_ = resident ? make_flat_buffer(layout, tensors, communicator_) : make_hollow_buffer(layout, tensors);
  for (const BucketSlot& slot : layout.slots) {
    parameters_.push_back(parameters[slot.item]);
    originals_.push_back(parameters_.back().tensor.detach());
    original_devices_.push_back(originals_.back().device());
  }
  if (resident) {
    fill(originals_);
    originals_.clear();  // now: the originals of all buckets would be a second copy of the model
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
        resident_ ? flat_.views[i].to(original_devices_[i], dtype, /*non_blocking=*/false, /*copy=*/true)
                  : originals_[i]);
  }
  flat_ = {};
}

at::Tensor ShardedBucket::own_shard(const at::Tensor& flat) const {
  const int64_t count = layout_.numel / place_.ranks;
  return leaf_over(flat, count * place_.rank, count);
}

void ShardedBucket::make_shard(LentMemory& memory) {
  const at::NoGradGuard no_grad;
  if (!resident_) {
    memory.lend(flat_.flat);
    clear(flat_.flat);
    fill(originals_);
  }
  originals_.clear();
  original_devices_.clear();
  if (communicator_.size() > 1 && layout_.numel > 0) communicator_.broadcast(flat_.flat).wait();
  const bool needs_digits = needs_master(layout_.dtype);
  shard_ = own_shard(flat_.flat);
  if (!resident_) {
    const at::Tensor held = homes_.parameters != nullptr
                                ? homes_.parameters->allocate(shard_.numel(), layout_.dtype)
                                : at::empty_like(shard_);
    shard_ = held.copy_(shard_);
    release(memory);
  }
  // A shard in host memory serves as the master.
  const bool serves =
      !resident_ && homes_.parameters != nullptr && !needs_digits && !homes_.masters_go_to_file;
  if (homes_.masters != nullptr && !serves) {
    master_ = homes_.masters->allocate(shard_.numel(), master_type()).copy_(shard_);
  } else {
    master_ = needs_digits ? shard_.to(at::kFloat) : shard_;
  }
}

c10::ScalarType ShardedBucket::master_type() const { return master_dtype(layout_.dtype); }

void ShardedBucket::update_shard() {
  const at::NoGradGuard no_grad;
  if (has_separate_master()) shard_.copy_(master_);
}

Work ShardedBucket::publish() {
  if (!resident_ || place_.ranks == 1) return {};
  return communicator_.all_gather(flat_.flat, shard_);
}

Gather ShardedBucket::start_gather(LentMemory& memory) {
  const at::NoGradGuard no_grad;
  memory.lend(flat_.flat);
  show();
  const bool crosses = shard_.device() != flat_.flat.device();
  if (place_.ranks == 1) {
    if (crosses) return {.copy = homes_.lane->copy(flat_.flat, shard_)};
    flat_.flat.copy_(shard_);
    return {};
  }
  if (!crosses) return {.work = communicator_.all_gather(flat_.flat, shard_)};
  const at::Tensor own = own_shard(flat_.flat);
  homes_.lane->copy(own, shard_).wait_on_device();
  return {.work = communicator_.all_gather(flat_.flat, own)};
}

void ShardedBucket::release(LentMemory& memory) {
  hide();
  memory.take_back(flat_.flat);
}

void ShardedBucket::show() {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.set_data(flat_.views[i]);
}

// Kernels do not check whether a tensor has memory. A parameter that is read at the wrong time must
// have another shape, not a null pointer.
void ShardedBucket::hide() {
  const at::Tensor nothing = at::empty({0}, flat_.flat.options());
  for (NamedParameter& parameter : parameters_) parameter.tensor.set_data(nothing);
}

bool ShardedBucket::may_be_written() const {
  return resident_ || !at::equal(own_shard(flat_.flat).to(shard_.device()), shard_);
}

void ShardedBucket::adopt_gathered() {
  const at::NoGradGuard no_grad;
  if (!resident_) shard_.copy_(own_shard(flat_.flat));
  update_master();
}

void ShardedBucket::update_master() {
  if (!has_separate_master()) return;
  const at::NoGradGuard no_grad;
  if (!is_master_wider()) {
    master_.copy_(shard_);
    return;
  }
  // Elements that were not written keep the digits that 16 bits do not have.
  const at::Tensor written = shard_.to(master_.device());
  const at::Tensor untouched = master_.to(shard_.scalar_type()).eq(written);
  master_.copy_(at::where(untouched, master_, written.to(at::kFloat)));
}

}  // namespace lockstep::parallel
