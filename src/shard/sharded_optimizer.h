#pragma once

#include <ATen/core/Tensor.h>

#include <string>
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

}  // namespace lockstep::shard
