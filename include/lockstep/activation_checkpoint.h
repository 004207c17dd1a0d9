#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// From here on every Sharded<> module inside keeps its inputs alone for backward, and
// computes again what it needs of the rest: less memory for about a third more time. Alone,
// under DataParallel and under ShardedModel at any stage; units inside of units too.
// Gradients have the bits that they have without it. Random numbers (dropout) are drawn
// again from the same state, and autocast is as it was.
//
// A module that counts its forwards, as BatchNorm does for its running statistics, counts
// two. The gradient of a gradient is refused (ConfigError in backward).
//
// ConfigError: there is no Sharded<> module.
void set_activation_checkpointing(torch::nn::Module& module, bool enabled = true);

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// The same for any function: its outputs, with a backward that runs it again. Gradients go
// to `inputs`, which may be undefined or need none, and to `parameters`: name all that the
// function uses and that needs one. It must do the same each time, and own what it refers
// to: it lives as long as the graph. Where gradients are off it just runs.
std::vector<at::Tensor> recompute_in_backward(const TensorFunction& function,
                                              const std::vector<at::Tensor>& inputs,
                                              const std::vector<at::Tensor>& parameters);

}  // namespace lockstep
