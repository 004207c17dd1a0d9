#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/sharded.h>

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "parallel/bucket_plan.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

// The unit of each parameter of a module: the innermost Sharded module around it, or what a UnitSource
// says, counted from 1. 0: there is none, or a tied parameter has several.
class UnitMap {
 public:
  explicit UnitMap(torch::nn::Module& module) { visit(module, 0); }

  // Unit i + 1 is units()[i].
  const std::vector<Unit*>& units() const { return units_; }
  // The unit around unit i + 1, where it first occurs in the module; 0: none.
  const std::vector<size_t>& parents() const { return parents_; }
  // Whether this unit computes its activations again in backward.
  bool recomputes(size_t unit) const { return unit > 0 && units_[unit - 1]->checkpoints(); }
  size_t of(const at::Tensor& parameter) const { return owner_.at(parameter.unsafeGetTensorImpl()); }

 private:
  void visit(torch::nn::Module& module, size_t unit);
  size_t number_of(Unit* unit, size_t parent);
  void give(const at::Tensor& parameter, size_t unit);

  std::vector<Unit*> units_;
  std::vector<size_t> parents_;
  std::map<const Unit*, size_t> index_;
  std::map<const void*, size_t> owner_;
  std::set<const void*> from_sources_;  // parameters whose unit a UnitSource has said
};

// How the trained parameters of a model become buckets. Arithmetic only, so that the memory of a
// training can be planned without one.

struct LayoutParameter {
  BucketItem item;  // its family is decided here
  int group = 0;    // of the optimizer
  size_t unit = 0;  // of UnitMap
};

struct LayoutBucket {
  BucketLayout layout;
  int group = 0;
  size_t unit = 0;       // 0 for a resident bucket too
  bool resident = true;  // whole on every rank at all times
};

// The buckets of one unit that are not resident.
struct UnitBuckets {
  std::vector<size_t> buckets;
  int64_t elements = 0;
};

struct ModelLayout {
  std::vector<BucketItem> items;  // that the layouts index
  std::vector<LayoutBucket> buckets;

  std::vector<UnitBuckets> by_unit(size_t num_units) const;
  // The resident buckets in which each unit has some of these parameters.
  std::vector<std::vector<size_t>> resident_by_unit(const std::vector<LayoutParameter>& parameters,
                                                    size_t num_units) const;
};

// A bucket has one group of the optimizer and, where parameters are sharded, one unit. `ranks`: those
// that shard a bucket; 1 where nothing is sharded.
ModelLayout lay_out(const std::vector<LayoutParameter>& parameters, const ZeroOptions& options, int ranks);

}  // namespace lockstep::parallel
