#pragma once

#include <lockstep/sharded_model.h>

#include <string>
#include <vector>

#include "grad/bucket_plan.h"
#include "shard/part_optimizer.h"
#include "shard/sharded_bucket.h"

namespace lockstep::shard {

// An optimizer's state between the two ways to look at it: parts of buckets, which it
// works on, and parameters, which checkpoints name. So a checkpoint of one stage and world
// size is one of any other.
struct StateView {
  torch::optim::Optimizer& optimizer;
  const std::vector<ShardedBucket>& buckets;
  const std::vector<grad::BucketItem>& items;
  Place place;
  // Of each group, as the optimizer had them before it was given parts.
  const std::vector<std::vector<std::string>>& group_names;
  PartOptimizer& home;
};

// A part of a bucket's master or state, elements [offset, offset + count) of this rank's.
void set_content(ShardedModel::Part& part, const PartOptimizer& home, size_t bucket, const at::Tensor& tensor,
                 int64_t offset, int64_t count, ShardedModel::Content content);

ShardedModel::OptimizerParts save_state(const StateView& view, ShardedModel::Content content);

// ConfigError: another class, other groups, or parameters of one bucket that were updated
// differently often; the optimizer is unchanged then, unless its state is in a file.
void load_state(const StateView& view, const std::string& values, const ShardedModel::ReadParts& read);

}  // namespace lockstep::shard
