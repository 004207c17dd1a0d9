#pragma once

#include <lockstep/model.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace lockstep::train {

// While it lives the model is in evaluation mode: dropout passes, batch norm uses what it
// has learned and learns nothing. Every module's mode before it comes back after it.
class EvaluationMode {
 public:
  explicit EvaluationMode(const Model& model) : modules_(model.module()->modules()) {
    for (const auto& module : modules_) was_training_.push_back(module->is_training());
    modules_.front()->eval();
  }
  ~EvaluationMode() {
    // train() is for a module and all below it, which come after it here.
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (modules_[i]->is_training() != was_training_[i]) modules_[i]->train(was_training_[i]);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  const std::vector<std::shared_ptr<torch::nn::Module>> modules_;  // the model itself first
  std::vector<bool> was_training_;
};

}  // namespace lockstep::train
