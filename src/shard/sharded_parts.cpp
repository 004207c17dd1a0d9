// What a ShardedModel holds, for checkpoints and for who counts bytes.

#include <ATen/ATen.h>
#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include <algorithm>

#include "shard/shard_plan.h"
#include "shard/sharded_model_impl.h"
#include "shard/sharded_optimizer.h"
#include "shard/sharded_state.h"

namespace lockstep {

using shard::NamedParameter;
using shard::ShardedBucket;

namespace {

// The content of parts of a flat tensor.
auto within(const at::Tensor& flat) {
  return [&flat](ShardedModel::Part& part, int64_t offset, int64_t count) {
    part.data = flat.narrow(0, offset, count);
  };
}

}  // namespace

void ShardedModel::Impl::add_parts(size_t index, const SetContent& set, std::vector<Part>& parts) const {
  const ShardedBucket& bucket = buckets[index];
  for (const shard::OwnedRange& range :
       shard::owned_ranges(bucket.layout(), items, place.ranks, place.rank)) {
    const NamedParameter& parameter = bucket.parameters()[range.slot];
    parts.push_back({parameter.name, bucket.shape(range.slot).vec(), range.first, {}});
    set(parts.back(), range.offset, range.count);
  }
}

ShardedModel::Memory ShardedModel::memory() const {
  Memory memory;
  const bool transient = impl_->has_transient_gradients();
  for (const ShardedBucket& bucket : impl_->buckets) {
    const auto bytes = static_cast<int64_t>(bucket.part().nbytes());
    const bool is_host = !bucket.resident() && impl_->offloads_parameters();
    memory.parameters += bucket.resident() ? bytes * impl_->place.ranks : bytes;
    if (is_host) memory.host += bytes;
    if (bucket.is_apart()) memory.master += static_cast<int64_t>(bucket.master().nbytes());
    if (transient || impl_->gradients->are_on_host()) memory.gradients += bytes;
  }
  memory.optimizer = shard::state_bytes(impl_->optimizer);
  if (impl_->offloads_optimizer()) {
    memory.buffers = impl_->updates->buffer_bytes();
    (impl_->is_nvme() ? memory.nvme : memory.host) += memory.master + memory.optimizer;
    memory.host += memory.gradients + memory.buffers;
  }
  (transient ? memory.buffers : memory.gradients) += impl_->sync->gradient_bytes();
  memory.buffers += impl_->gatherer->bytes();
  return memory;
}

std::vector<ShardedModel::Part> ShardedModel::gradient_parts() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    if (!impl_->gradients->has(i)) continue;
    const at::Tensor flat = impl_->gradients->of(i);
    impl_->add_parts(i, within(flat), parts);
  }
  return parts;
}

std::vector<ShardedModel::Part> ShardedModel::parameter_parts() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    impl_->add_parts(i, within(impl_->buckets[i].part()), parts);
  }
  return parts;
}

std::vector<ShardedModel::Part> ShardedModel::master_parts(Content content) const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    const auto set = [&](Part& part, int64_t offset, int64_t count) {
      shard::set_content(part, *impl_->updates, i, impl_->buckets[i].master(), offset, count, content);
    };
    impl_->add_parts(i, set, parts);
  }
  return parts;
}

std::map<std::string, std::vector<int64_t>> ShardedModel::shapes() const {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ShardedBucket& bucket : impl_->buckets) {
    for (size_t i = 0; i < bucket.parameters().size(); ++i) {
      shapes.emplace(bucket.parameters()[i].name, bucket.shape(i).vec());
    }
  }
  return shapes;
}

bool ShardedModel::has_masters() const {
  return std::any_of(impl_->buckets.begin(), impl_->buckets.end(),
                     [](const ShardedBucket& bucket) { return bucket.has_master(); });
}

void ShardedModel::load_parameters(const ReadParts& read, const ReadParts& read_masters) {
  const at::NoGradGuard no_grad;
  finish_step();
  impl_->schedule->release_all();
  const auto fill = [](const std::vector<Part>& parts, const ReadParts& from) {
    std::vector<Part> on_host = parts;
    for (Part& part : on_host) {
      if (!part.data.is_cpu()) part.data = at::empty_like(part.data, at::kCPU);
    }
    from(on_host);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].data.is_cpu()) parts[i].data.copy_(on_host[i].data);
    }
  };
  fill(parameter_parts(), read);
  const auto change = [this](size_t i, const auto& body) { impl_->updates->change(i, body); };
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    change(i, [&] { impl_->buckets[i].adopt_part(); });
  }
  // One after the other: those in a file are in memory one at a time.
  for (size_t i = 0; read_masters && has_masters() && i < impl_->buckets.size(); ++i) {
    change(i, [&] {
      std::vector<Part> parts;
      impl_->add_parts(i, within(impl_->buckets[i].master()), parts);
      fill(parts, read_masters);
    });
  }
  for (size_t i = 0; i < impl_->buckets.size(); ++i) impl_->gatherer->publish(i);
  finish_step();
}

ShardedModel::OptimizerParts ShardedModel::optimizer_parts(Content content) const {
  return shard::save_state(impl_->state_view(), content);
}

void ShardedModel::load_optimizer(const std::string& values, const ReadParts& read) {
  shard::load_state(impl_->state_view(), values, read);
}

}  // namespace lockstep
