#pragma once

#include <lockstep/cpu_adam.h>
#include <torch/torch.h>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

// See make_cpu_adam. Options and state are those of torch::optim's class.
template <typename State, typename Options>
class CpuAdamOptimizer final : public ForeachOptimizer<State, Options> {
 public:
  using ForeachOptimizer<State, Options>::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

using CpuAdam = CpuAdamOptimizer<torch::optim::AdamParamState, torch::optim::AdamOptions>;
using CpuAdamW = CpuAdamOptimizer<torch::optim::AdamWParamState, torch::optim::AdamWOptions>;

}  // namespace lockstep::optim
