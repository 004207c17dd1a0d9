#include "parallel/shard_gradients.h"

#include <ATen/ATen.h>
#include <lockstep/error.h>

namespace lockstep::parallel {

namespace {

// The most shards that the device holds until they are copied to the host.
constexpr size_t kCopiesInFlight = 2;

}  // namespace

ShardGradients::ShardGradients(const std::vector<ShardedBucket>& buckets, const std::vector<at::Tensor>& flat,
                               const Communicator& communicator, const ShardedOptions& options,
                               CopyLane& lane, HostMemory* host)
    : buckets_(buckets),
      communicator_(communicator),
      options_(options),
      lane_(lane),
      host_(host != nullptr && !lane.is_plain()) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t numel = buckets[i].shard().numel();
    if (host_) {
      gradients_.push_back(host->allocate(numel, flat[i].scalar_type()));
    } else if (has_separate_memory()) {
      gradients_.push_back(at::empty({numel}, flat[i].options()));
    } else {
      gradients_.push_back(buckets[i].own_shard(flat[i]));
    }
  }
  present_.assign(buckets.size(), false);
  copies_.resize(buckets.size());
}

at::Tensor ShardGradients::output_for(size_t index, const at::Tensor& input) {
  const at::Tensor& gradient = gradients_[index];
  // The first gradient of a step is reduced in place; later ones are added to it.
  const bool is_direct = !host_ && !present_[index] && input.scalar_type() == gradient.scalar_type();
  if (is_direct) return gradient;
  if (host_ && in_flight_.size() >= kCopiesInFlight) {
    in_flight_.front().wait();
    in_flight_.pop_front();
  }
  return at::empty({buckets_[index].shard().numel()}, input.options());
}

PendingReduction ShardGradients::reduce(size_t index, const at::Tensor& flat) {
  if (!has_separate_memory() && present_[index]) {
    throw ConfigError(
        "shard",
        "a second backward reduced gradients before step() or zero_grad(): put all but the last "
        "backward of a step into no_sync()");
  }
  const at::NoGradGuard no_grad;
  const double before = options_.gradient_predivide_factor;
  const double after = before / communicator_.size();
  const bool is_split = !options_.sum_gradients && (before != 1.0 || options_.divide_after_sum);
  const bool converts = options_.communication_dtype && *options_.communication_dtype != flat.scalar_type();
  at::Tensor input = flat;
  if (converts) input = input.to(*options_.communication_dtype);
  if (before != 1.0) input.mul_(1.0 / before);
  const ReduceOp op = is_split || options_.sum_gradients ? ReduceOp::kSum : ReduceOp::kMean;
  at::Tensor output;
  Work work;
  if (!is_sharded()) {
    output = input;
    work = communicator_.all_reduce(input, op);
  } else {
    output = output_for(index, input);
    work = communicator_.reduce_scatter(output, input, op);
  }
  auto finish = [this, index, input, output, is_split, after] {
    const at::NoGradGuard inner_no_grad;
    if (is_split) output.mul_(after);
    if (host_) {
      copy_to_host(index, output);
    } else {
      accumulate(index, output);
    }
    present_[index] = true;
  };
  return {std::move(work), std::move(finish)};
}

void ShardGradients::accumulate(size_t index, const at::Tensor& reduced) {
  at::Tensor& gradient = gradients_[index];
  if (present_[index]) {
    gradient.add_(reduced);
  } else if (reduced.const_data_ptr() != gradient.const_data_ptr()) {
    gradient.copy_(reduced);
  }
}

void ShardGradients::copy_to_host(size_t index, const at::Tensor& reduced) {
  at::Tensor& gradient = gradients_[index];
  if (present_[index]) {
    copies_[index].wait();
    gradient.add_(reduced.cpu());
    return;
  }
  copies_[index] = lane_.copy(gradient, reduced.to(gradient.scalar_type()));
  in_flight_.push_back(copies_[index]);
}

const at::Tensor& ShardGradients::of(size_t index) {
  copies_[index].wait();
  return gradients_[index];
}

const std::vector<at::Tensor>& ShardGradients::all() {
  for (const CopyLane::Mark& copy : copies_) copy.wait();
  return gradients_;
}

}  // namespace lockstep::parallel
