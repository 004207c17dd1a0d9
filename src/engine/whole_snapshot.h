#pragma once

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::engine {

// The weights of a model that is whole on this rank, and its optimizer.
void add_weights(checkpoint::Snapshot& snapshot, const torch::nn::Module& module);
void add_optimizer(checkpoint::Snapshot& snapshot, const torch::nn::Module& module,
                   const torch::optim::Optimizer& optimizer);

// Weights are compared by names, shapes and dtypes before anything is read. ConfigError:
// another model or another optimizer, and what differs.
void restore_weights(const checkpoint::Reader& reader, const torch::nn::Module& module);
void restore_optimizer(const checkpoint::Reader& reader, const torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer);

}  // namespace lockstep::engine
