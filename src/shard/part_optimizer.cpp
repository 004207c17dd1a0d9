#include "shard/part_optimizer.h"

#include <ATen/ATen.h>
#include <torch/torch.h>

#include <algorithm>

#include "optim/flat_optimizer.h"
#include "shard/sharded_optimizer.h"

namespace lockstep::shard {

PartOptimizer::PartOptimizer(torch::optim::Optimizer& optimizer, std::vector<ShardedBucket>& buckets,
                             std::vector<int> group_of, CopyLane& lane, HostMemory* staging,
                             std::unique_ptr<NvmeStates> states)
    : optimizer_(optimizer),
      buckets_(buckets),
      group_of_(std::move(group_of)),
      lane_(lane),
      is_offloaded_(staging != nullptr),
      states_(std::move(states)) {
  // Some have a state before their first step.
  for (size_t i = 0; states_ && i < buckets_.size(); ++i) {
    if (!optim::state_tensors(optimizer_, buckets_[i].master()).empty()) put_back(i);
  }
  int64_t bytes = 0;
  for (const ShardedBucket& bucket : buckets_) {
    const bool crosses = bucket.is_apart() && !bucket.is_near();
    if (crosses) bytes = std::max(bytes, static_cast<int64_t>(bucket.part().nbytes()));
  }
  if (bytes == 0 || !is_offloaded_) return;
  for (Stage& stage : stages_) stage.bytes = staging->allocate(bytes, at::kByte);
}

void PartOptimizer::begin_step(const at::Tensor& factor) {
  factor_ = factor;
  host_factor_ = is_offloaded_ && factor.defined() ? factor.item<float>() : 1;
  lane_.finish();
  if (states_) states_->settle();
}

void PartOptimizer::step(size_t index, const at::Tensor& gradient, std::optional<size_t> next) {
  if (!is_offloaded_) {
    step_one(optimizer_, buckets_[index].master(), gradient, factor_);
    buckets_[index].take_update();
    return;
  }
  if (states_) {
    states_->open(index);
    if (next) states_->prefetch(*next);
  }
  step_on_host(index, gradient);
  if (states_) put_back(index);
}

void PartOptimizer::put_back(size_t index) {
  std::vector<at::Tensor> tensors = optim::state_tensors(optimizer_, buckets_[index].master());
  tensors.insert(tensors.begin(), buckets_[index].master());
  states_->store(index, tensors);
}

void PartOptimizer::change(size_t index, const std::function<void()>& body) {
  if (states_) states_->open(index);
  body();
  if (states_) put_back(index);
}

at::Tensor PartOptimizer::readable(size_t index, const at::Tensor& tensor, int64_t first,
                                   int64_t count) const {
  return states_ ? states_->copy_of(index, tensor, first, count) : tensor.narrow(0, first, count);
}

void PartOptimizer::take_state(size_t index) {
  if (states_) put_back(index);
}

int64_t PartOptimizer::buffer_bytes() const {
  int64_t bytes = states_ ? states_->buffer_bytes() : 0;
  for (const Stage& stage : stages_) {
    if (stage.bytes.defined()) bytes += static_cast<int64_t>(stage.bytes.nbytes());
  }
  return bytes;
}

at::Tensor PartOptimizer::staging_for(const ShardedBucket& bucket) {
  Stage& stage = stages_[next_stage_];
  stage.copy.wait();
  const at::Tensor& part = bucket.part();
  return stage.bytes.narrow(0, 0, static_cast<int64_t>(part.nbytes())).view(part.scalar_type());
}

void PartOptimizer::step_on_host(size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  ShardedBucket& bucket = buckets_[index];
  at::Tensor copy;
  if (bucket.is_apart()) copy = bucket.is_near() ? bucket.part() : staging_for(bucket);
  const auto& options = optimizer_.param_groups()[static_cast<size_t>(group_of_[index])].options();
  if (!optim::step_one_flat(optimizer_, options, bucket.master(), gradient,
                            {.gradient_factor = host_factor_, .copy = copy})) {
    step_one(optimizer_, bucket.master(), gradient, factor_);
    if (copy.defined()) copy.copy_(bucket.master());
  }
  if (!copy.defined() || bucket.is_near()) return;
  Stage& stage = stages_[next_stage_];
  stage.copy = lane_.copy(bucket.part(), copy);
  stage.copy.wait_on_device();
  next_stage_ = (next_stage_ + 1) % stages_.size();
}

}  // namespace lockstep::shard
