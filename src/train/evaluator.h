#pragma once

#include <lockstep/model.h>
#include <lockstep/trainer.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/metric_sums.h"
#include "train/progress_bar.h"

namespace lockstep::train {

// The model is in evaluation mode while it exists: dropout passes values on, and batch norm uses its
// running statistics without changing them. Afterwards every module has its previous mode.
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

// What happens around the batches of an evaluation.
struct BatchHooks {
  std::function<void(const Batch&)> start;
  std::function<void(const LossResult&)> end;
};

// Where an evaluation shows how far it is, and under which name: "validation".
struct ShownEvaluation {
  ProgressBar& bar;
  std::string name;
};

struct Evaluated {
  const Model& model;
  // Parameters are gathered as the model runs, which is collective: a rank with fewer batches than
  // another one runs the model on a sample that does not count.
  bool in_step = false;
  // The most batches of this rank; nullopt: all.
  std::optional<int64_t> max_batches = {};
};

// Loss and metrics over all samples of a loader, each on one rank, without gradients; with several
// loaders by name until the shortest one ends. The model is in evaluation mode in the meantime. Its
// position is shown from the beginning, before a batch is done. Collective.
Evaluation evaluate(const DataSource& data, const World& world, c10::ScalarType dtype,
                    const std::function<LossResult(const Batch&)>& forward, const Evaluated& evaluated,
                    const TrainConfig& config, const BatchHooks& hooks, const ShownEvaluation& shown);

// The model's outputs in the order of the data, on the CPU of every rank. Collective.
at::Tensor predict(const Loader& whole, const World& world, c10::ScalarType dtype, const Evaluated& evaluated,
                   const TrainConfig& config);

}  // namespace lockstep::train
