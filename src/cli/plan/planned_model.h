#pragma once

#include <lockstep/model.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::cli::plan {

// Of whom the bytes are told.
struct PlannedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::string optimizer_name;
  // Where the model can run: how, and the shape of one sample.
  std::optional<Model> runnable;
  std::vector<int64_t> sample_shape;
  int64_t batch_size = 1;  // a rank's
};

struct ModelChoice {
  std::string name;       // a recipe's, or a path
  std::string size;       // a recipe's flag --model
  std::string optimizer;  // empty: the recipe's own, Adam for a file
  std::string precision = "fp32";
  std::optional<int64_t> batch_size = {};
  int world = 1;
};

inline const std::vector<std::string> kOptimizers = {"adam",    "adamw", "adadelta", "adagrad",
                                                     "rmsprop", "sgd",   "momentum"};

// A recipe's model is built on the CPU. Of a file the names and shapes of its
// floating-point tensors are taken; modules whose names end in a number, of which there
// are several ("layers.0", "layers.1"), count as Sharded<> units. ConfigError: no such
// recipe or file.
PlannedModel planned_model(const ModelChoice& choice);

}  // namespace lockstep::cli::plan
