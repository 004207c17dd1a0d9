#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shard/sharded_bucket.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::shard {

// For each parameter its group in the optimizer. ConfigError: a parameter is in no group,
// or the optimizer has one that is not among them, by name or shape.
std::vector<int> groups_of(const torch::optim::Optimizer& optimizer,
                           const std::vector<NamedParameter>& parameters);

// ConfigError: the optimizer cannot work on parts of flat buckets, and why.
void require_elementwise(const torch::optim::Optimizer& optimizer, bool allow_untested);

// ConfigError: the optimizer has made steps already.
void require_fresh(const torch::optim::Optimizer& optimizer);

// Gives the optimizer the masters in place of its parameters; group_of[i] belongs to
// buckets[i]. Its state starts anew.
void hand_over(torch::optim::Optimizer& optimizer, const std::vector<ShardedBucket>& buckets,
               const std::vector<int>& group_of);

// Updates one master by its gradient, which has the master's dtype or is converted, times
// `factor` where that is defined.
void step_one(torch::optim::Optimizer& optimizer, const at::Tensor& master, const at::Tensor& gradient,
              const at::Tensor& factor);

int64_t state_bytes(const torch::optim::Optimizer& optimizer);

// Bytes of state that an optimizer will keep for parts, found out by a step on a small
// tensor. The optimizer must live as long; it is as before after each call. A class that
// this library does not know counts as one without state.
class StateBytes {
 public:
  explicit StateBytes(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  int64_t operator()(int group, c10::ScalarType dtype, int64_t elements) const;

 private:
  int64_t measure(int group, c10::ScalarType dtype) const;

  torch::optim::Optimizer& optimizer_;
  // Of kProbeElements elements.
  mutable std::map<std::pair<int, c10::ScalarType>, int64_t> measured_;
};

}  // namespace lockstep::shard
