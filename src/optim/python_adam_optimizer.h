#pragma once

#include <lockstep/python_adam.h>
#include <torch/torch.h>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

// See make_python_adam. Options and state are those of torch::optim::Adam.
class PythonAdam final : public ForeachOptimizer<torch::optim::AdamParamState, torch::optim::AdamOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
