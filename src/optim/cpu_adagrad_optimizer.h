#pragma once

#include <lockstep/cpu_adagrad.h>
#include <torch/torch.h>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

// See make_cpu_adagrad. Options and state are those of torch::optim::Adagrad.
class CpuAdagrad final
    : public ForeachOptimizer<torch::optim::AdagradParamState, torch::optim::AdagradOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
