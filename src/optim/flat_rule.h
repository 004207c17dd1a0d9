#pragma once

#include <optional>

#include "optim/flat_kernels.h"

namespace torch::optim {
class OptimizerOptions;
}

namespace lockstep::optim {

// What the options of a parameter group of Adam, AdamW, Adagrad, Lion or SGD say about its
// `step`-th step; the first is 1. Nullopt: options of another class, or one that the kernels
// do not have (amsgrad).
std::optional<FlatRule> flat_rule(const torch::optim::OptimizerOptions& options, int64_t step);

}  // namespace lockstep::optim
