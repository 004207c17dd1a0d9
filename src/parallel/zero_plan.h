#pragma once

#include <lockstep/sharded.h>

namespace lockstep::parallel {

// The options themselves. ConfigError: one of them is not valid, or two of them contradict each
// other.
ShardedOptions checked(ShardedOptions options);

// plan_zero(). `masters` false: 16-bit parameters are updated without float32 masters, as a replicated
// model does.
ZeroPlan plan_states(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                     const ShardedOptions& options, bool masters);

// Checks before anything is allocated whether the states of a training with these options fit into the
// memory that each rank may use: options.memory_limit_bytes, and what is free on the GPU, or what
// RLIMIT_AS, RLIMIT_DATA and control groups leave on CPUs. Existing whole parameters count as free. A
// model that cannot be sharded passes. Collective.
//
// ConfigError on all ranks names the rank, the numbers and the stage that would fit.
void require_memory(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                    const Communicator& communicator, const ShardedOptions& options, bool masters = true);

// Warns on rank 0 if stage 3 and autocast are used with units that do not recompute: autocast's 16-bit
// copies of sharded weights stay on every rank from forward to backward. require_memory() counts
// them.
void warn_of_casts(torch::nn::Module& module, const Communicator& communicator,
                   const ShardedOptions& options);

}  // namespace lockstep::parallel
