#pragma once

#include <lockstep/model.h>
#include <torch/nn/module.h>

namespace lockstep::train {

// While it lives the model is in evaluation mode: dropout passes, batch norm uses what it
// has learned and learns nothing. The mode before it comes back after it.
class EvaluationMode {
 public:
  explicit EvaluationMode(const Model& model)
      : module_(*model.module()), was_training_(module_.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  const bool was_training_;
};

}  // namespace lockstep::train
