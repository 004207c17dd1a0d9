#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/sharded.h>

#include <cstddef>
#include <map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::shard {

// Which unit each parameter of a module belongs to: the innermost Sharded module around it,
// from 1 on, or 0 where there is none, or where tied parameters have several.
class UnitMap {
 public:
  explicit UnitMap(torch::nn::Module& module) { visit(module, 0); }

  // Unit i + 1 is units()[i].
  const std::vector<Unit*>& units() const { return units_; }
  // The unit around unit i + 1, at its first place in the module; 0: none.
  const std::vector<size_t>& parents() const { return parents_; }
  // Whether this unit computes its activations again in backward.
  bool recomputes(size_t unit) const { return unit > 0 && units_[unit - 1]->checkpoints(); }
  size_t of(const at::Tensor& parameter) const { return owner_.at(parameter.unsafeGetTensorImpl()); }

 private:
  void visit(torch::nn::Module& module, size_t unit);

  std::vector<Unit*> units_;
  std::vector<size_t> parents_;
  std::map<const Unit*, size_t> index_;
  std::map<const void*, size_t> owner_;
};

}  // namespace lockstep::shard
