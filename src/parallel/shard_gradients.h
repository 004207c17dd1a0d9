#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sharded.h>

#include <deque>
#include <vector>

#include "parallel/offload.h"
#include "parallel/sharded_bucket.h"

namespace lockstep::parallel {

// This rank's shards of the mean gradients, a flat tensor for each bucket.
//
// From stage 2 on they have separate memory and are summed over backwards; below it they are views of
// the buckets. Offloaded ones are in host memory, and are copied there during backward.
class ShardGradients {
 public:
  // `flat[i]` is buckets[i]'s whole gradient, which has no memory between backwards from stage 2 on.
  // `host`: memory for offloaded gradients; null: they stay on the device.
  ShardGradients(const std::vector<ShardedBucket>& buckets, const std::vector<at::Tensor>& flat,
                 const Communicator& communicator, const ShardedOptions& options, CopyLane& lane,
                 HostMemory* host);

  // Starts to reduce a whole gradient. ConfigError below stage 2: the last reduced gradient has not been
  // used, and gradients are not summed there.
  PendingReduction reduce(size_t index, const at::Tensor& flat);

  void forget() { present_.assign(present_.size(), false); }
  bool has(size_t index) const { return present_[index]; }
  // Waits for the copy of this gradient.
  const at::Tensor& of(size_t index);
  // Waits for all copies.
  const std::vector<at::Tensor>& all();

  bool are_on_host() const { return host_; }

 private:
  bool is_sharded() const { return options_.zero.stage > 0; }
  bool has_separate_memory() const { return options_.zero.stage >= 2; }
  // Device memory for the result.
  at::Tensor output_for(size_t index, const at::Tensor& input);
  void accumulate(size_t index, const at::Tensor& reduced);
  void copy_to_host(size_t index, const at::Tensor& reduced);

  const std::vector<ShardedBucket>& buckets_;
  const Communicator communicator_;
  const ShardedOptions& options_;
  CopyLane& lane_;
  const bool host_;
  std::vector<at::Tensor> gradients_;
  std::vector<bool> present_;
  std::vector<CopyLane::Mark> copies_;    // of each bucket, to the host
  std::deque<CopyLane::Mark> in_flight_;  // the newest copies, oldest first
};

}  // namespace lockstep::parallel
