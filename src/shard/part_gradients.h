#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sharded_model.h>

#include <deque>
#include <vector>

#include "shard/copy_lane.h"
#include "shard/host_memory.h"
#include "shard/sharded_bucket.h"

namespace lockstep::shard {

// This rank's parts of the mean gradients, a flat tensor for each bucket.
//
// From stage 2 on they have memory of their own and add up over backwards; before that
// they are parts of the buckets themselves. Offloaded ones are in host memory, and copies go
// there beside the rest of backward.
class PartGradients {
 public:
  // `flat[i]` is buckets[i]'s whole gradient, which has no memory between backwards from
  // stage 2 on. `host` is where offloaded gradients go; null: they stay on the device.
  PartGradients(const std::vector<ShardedBucket>& buckets, const std::vector<at::Tensor>& flat,
                const Communicator& communicator, const ShardedOptions& options, CopyLane& lane,
                HostMemory* host);

  // Starts to reduce a whole gradient. ConfigError: one was reduced before, and it would
  // have to be added to it, before stage 2.
  PendingReduction reduce(size_t index, const at::Tensor& flat);

  void forget() { present_.assign(present_.size(), false); }
  bool has(size_t index) const { return present_[index]; }
  // Waits for the copy of this one.
  const at::Tensor& of(size_t index);
  // Waits for all copies.
  const std::vector<at::Tensor>& all();

  bool are_on_host() const { return host_; }

 private:
  bool is_divided() const { return options_.stage > 0; }
  bool has_own_memory() const { return options_.stage >= 2; }
  // Memory of the device to reduce to.
  at::Tensor output_for(size_t index, const at::Tensor& input);
  void accumulate(size_t index, const at::Tensor& reduced);
  void bring_to_host(size_t index, const at::Tensor& reduced);

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

}  // namespace lockstep::shard
