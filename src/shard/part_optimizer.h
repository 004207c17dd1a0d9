#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shard/copy_lane.h"
#include "shard/host_memory.h"
#include "shard/nvme_states.h"
#include "shard/sharded_bucket.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::shard {

// Updates this rank's parts, bucket by bucket, and knows where masters and state are. Where
// the masters are in host memory the step runs there, by the flat kernels if they have the
// optimizer's class, and what comes out goes to the device while the next bucket is computed.
class PartOptimizer {
 public:
  // buckets[i] belongs to group group_of[i] of the optimizer, which has their masters.
  // `staging` is host memory for copies to the device; null: nothing is offloaded. `states`
  // holds the masters already, or is null: they are in memory.
  PartOptimizer(torch::optim::Optimizer& optimizer, std::vector<ShardedBucket>& buckets,
                std::vector<int> group_of, CopyLane& lane, HostMemory* staging,
                std::unique_ptr<NvmeStates> states);

  // After all that a step before has started. Gradients of this step count times `factor`,
  // one number, where it is defined.
  void begin_step(const at::Tensor& factor);
  // The part is there for what the current stream is given next. `next` is the bucket that
  // will be stepped after this one.
  void step(size_t index, const at::Tensor& gradient, std::optional<size_t> next);

  // Runs `body`, which may change the bucket's master.
  void change(size_t index, const std::function<void()>& body);
  // Whether masters and states are in memory, where everybody can read them.
  bool is_in_memory() const { return states_ == nullptr; }
  // Elements of a master or state of this bucket that can be read: of the tensor itself, or a
  // copy. Several threads may ask at a time, if none calls anything else.
  at::Tensor readable(size_t index, const at::Tensor& tensor, int64_t first, int64_t count) const;
  // After somebody gave the optimizer another state of this bucket.
  void take_state(size_t index);

  int64_t buffer_bytes() const;  // in host memory

 private:
  void step_on_host(size_t index, const at::Tensor& gradient);
  void put_back(size_t index);
  at::Tensor staging_for(const ShardedBucket& bucket);

  torch::optim::Optimizer& optimizer_;
  std::vector<ShardedBucket>& buckets_;
  const std::vector<int> group_of_;
  CopyLane& lane_;
  const bool is_offloaded_;
  const std::unique_ptr<NvmeStates> states_;
  at::Tensor factor_;
  float host_factor_ = 1;

  // One is filled while the other is copied.
  struct Stage {
    at::Tensor bytes;
    CopyLane::Mark copy;
  };
  std::array<Stage, 2> stages_;
  size_t next_stage_ = 0;
};

}  // namespace lockstep::shard
