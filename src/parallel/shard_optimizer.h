#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/sharded.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/bucket_plan.h"
#include "parallel/offload.h"
#include "parallel/sharded_bucket.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::parallel {

// The optimizer's group of each parameter. ConfigError: a parameter is in no group, or the optimizer has
// a parameter that is not among them; by name or shape.
std::vector<int> groups_of(const torch::optim::Optimizer& optimizer,
                           const std::vector<NamedParameter>& parameters);

// ConfigError: the optimizer cannot work on shards of flat buckets, and why.
void require_elementwise(const torch::optim::Optimizer& optimizer, bool allow_untested);

// ConfigError: the optimizer has made steps already.
void require_fresh(const torch::optim::Optimizer& optimizer);

// Replaces the optimizer's parameters by the masters; group_of[i] belongs to buckets[i], and the buckets were
// planned for `items`. Its state is reset.
void hand_over(torch::optim::Optimizer& optimizer, const std::vector<ShardedBucket>& buckets,
               const std::vector<int>& group_of, const std::vector<BucketItem>& items, Place place);

// Updates one master by its gradient, converted to the master's dtype, times `factor` if that is
// defined.
void step_one(torch::optim::Optimizer& optimizer, const at::Tensor& master, const at::Tensor& gradient,
              const at::Tensor& factor);

int64_t state_bytes(const torch::optim::Optimizer& optimizer);

// Predicts the bytes of state that an optimizer will keep for shards, by a step on a small tensor. The
// optimizer outlives it and is unchanged after each call. A class that this library does not know
// counts as one without state.
class StateBytes {
 public:
  explicit StateBytes(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  int64_t operator()(int group, c10::ScalarType dtype, int64_t elements) const;

 private:
  int64_t measure(int group, c10::ScalarType dtype) const;

  torch::optim::Optimizer& optimizer_;
  // Bytes for kProbeElements elements.
  mutable std::map<std::pair<int, c10::ScalarType>, int64_t> measured_;
};

// Updates this rank's shards, bucket by bucket, wherever masters and state are kept. With masters in
// host memory the step runs on the CPU, by the flat kernels if they support the optimizer's class,
// and the result is copied to the device while the next bucket is computed.
class ShardOptimizer {
 public:
  // buckets[i] belongs to group group_of[i] of the optimizer, which has their masters. `staging`: host
  // memory for copies to the device; null: nothing is offloaded. `states` holds the masters already;
  // null: they are in memory.
  ShardOptimizer(torch::optim::Optimizer& optimizer, std::vector<ShardedBucket>& buckets,
                 std::vector<int> group_of, CopyLane& lane, HostMemory* staging,
                 std::unique_ptr<NvmeStates> states);

  // Waits for what the last step started. Gradients of this step are multiplied by `factor`, one number,
  // if it is defined.
  void begin_step(const at::Tensor& factor);
  // Work that the current stream gets after this call sees the updated shard. `next` is the bucket that
  // will be stepped after this one.
  void step(size_t index, const at::Tensor& gradient, std::optional<size_t> next);

  // Runs `body`, which may change the bucket's master.
  void change(size_t index, const std::function<void()>& body);
  // Whether masters and states are in memory and can be read at any time.
  bool is_in_memory() const { return states_ == nullptr; }
  // Readable elements of a master or state of this bucket: of the tensor itself, or a copy. Several
  // threads may call it at a time, if none calls another function.
  at::Tensor readable(size_t index, const at::Tensor& tensor, int64_t first, int64_t count) const;
  // After the optimizer's state of this bucket was replaced.
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

// Converts an optimizer's state between shards of buckets, which it works on, and parameters, which
// checkpoints name: a checkpoint of one stage and world size loads at any other.
struct StateView {
  torch::optim::Optimizer& optimizer;
  const std::vector<ShardedBucket>& buckets;
  const std::vector<BucketItem>& items;
  Place place;
  // The parameters of each group before they were replaced by masters.
  const std::vector<std::vector<std::string>>& group_names;
  ShardOptimizer& home;
};

// Sets the content of `part`: elements [offset, offset + count) of this rank's master or state.
void set_content(ShardedModel::Part& part, const ShardOptimizer& home, size_t bucket,
                 const at::Tensor& tensor, int64_t offset, int64_t count, ShardedModel::Content content);

ShardedModel::OptimizerParts save_state(const StateView& view, ShardedModel::Content content);

// ConfigError: another class, other groups, or parameters of one bucket with different numbers of
// updates. The optimizer is unchanged then, unless its state is in a file.
void load_state(const StateView& view, const std::string& values, const ShardedModel::ReadParts& read);

}  // namespace lockstep::parallel
