#pragma once

#include <lockstep/python_adam.h>
#include <torch/torch.h>

namespace lockstep::optim {

// See make_python_adam. Options and state are those of torch::optim::Adam.
class PythonAdam final : public torch::optim::Optimizer {
 public:
  explicit PythonAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const torch::optim::AdamOptions& defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group);
};

}  // namespace lockstep::optim
