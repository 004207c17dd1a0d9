#pragma once

#include <lockstep/sharded_model.h>

#include <cstddef>
#include <vector>

#include "grad/bucket_plan.h"

namespace lockstep::shard {

// How the trained parameters of a model become buckets: arithmetic only, so that what a
// training will hold can be told without one.

struct LayoutParameter {
  grad::BucketItem item;  // its family is decided here
  int group = 0;          // of the optimizer
  size_t unit = 0;        // as UnitMap has it
};

struct LayoutBucket {
  grad::BucketLayout layout;
  int group = 0;
  size_t unit = 0;       // 0 also where it is resident
  bool resident = true;  // whole on every rank at all times
};

// Of one unit, what is not whole at all times.
struct UnitBuckets {
  std::vector<size_t> buckets;
  int64_t elements = 0;
};

struct ModelLayout {
  std::vector<grad::BucketItem> items;  // which the layouts index
  std::vector<LayoutBucket> buckets;

  std::vector<UnitBuckets> by_unit(size_t num_units) const;
  // The resident buckets in which each unit has some of these parameters.
  std::vector<std::vector<size_t>> resident_by_unit(const std::vector<LayoutParameter>& parameters,
                                                    size_t num_units) const;
};

// A bucket has one group of the optimizer and, where parameters are divided, one unit.
// `ranks`: those that share a bucket; 1 where nothing is divided.
ModelLayout lay_out(const std::vector<LayoutParameter>& parameters, const ShardedOptions& options, int ranks);

}  // namespace lockstep::shard
