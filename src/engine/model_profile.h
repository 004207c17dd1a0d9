#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/operation_recorder.h"

namespace torch::nn {
class Module;
}

namespace lockstep::engine {

// What the forwards of a model cost, by module. C++ modules cannot be asked when they run, so
// an operation is counted for the module that holds a parameter it uses, and for those around
// it; one that uses none (an activation, attention) for the model alone.
class ModelProfile final : public OperationListener {
 public:
  struct Part {
    std::string name;  // "layer1.0.conv"; empty for the model
    std::string type;  // "Conv2d"
    int depth = 0;
    int64_t parameters = 0;  // as all the following, with those of its children
    Cost cost = {};
    std::chrono::nanoseconds time = {};
  };

  // Before the model is divided: afterwards a rank has parts of its parameters only. The
  // module's parameters outlive it.
  explicit ModelProfile(const torch::nn::Module& model);

  void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs) override;
  void ended(std::chrono::nanoseconds time) override;
  // Forgets costs and times.
  void clear();

  // The model, then its modules in the order they were registered, children after parents.
  const std::vector<Part>& parts() const { return parts_; }
  const Part& model() const { return parts_.front(); }

 private:
  struct Owned {
    at::Tensor parameter;
    size_t part;
  };

  size_t add(const torch::nn::Module& module, std::string name, int depth, size_t parent);
  size_t owner_of(c10::ArrayRef<const c10::IValue> inputs) const;

  std::vector<Part> parts_;
  std::vector<size_t> parents_;  // of each part; the model's is itself
  std::vector<Owned> owned_;
  size_t running_ = 0;  // the part whose operation runs, and what that costs
  Cost running_cost_ = {};
};

}  // namespace lockstep::engine
