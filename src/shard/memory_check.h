#pragma once

#include <lockstep/sharded_model.h>
#include <lockstep/zero_plan.h>

namespace lockstep::shard {

// plan_zero(); `masters` false: 16-bit parameters are updated as they are, by a trainer that
// divides nothing.
ZeroPlan plan_states(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                     const ShardedOptions& options, bool masters);

// Before anything is allocated: whether what training with these options keeps fits into
// what each rank may use. That is options.memory_limit_bytes, and what is free on the GPU,
// or what RLIMIT_AS, RLIMIT_DATA and control groups leave on CPUs; whole parameters that
// are there already count as free. A model that cannot be divided passes. Collective.
//
// ConfigError on all ranks names the rank, the numbers and the stage that would fit.
void require_memory(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                    const Communicator& communicator, const ShardedOptions& options, bool masters = true);

// Warns, on rank 0, where stage 3 and autocast are used together with units that do not recompute:
// the 16-bit copies that autocast makes of divided weights stay on every rank from forward to
// backward. require_memory() counts them.
void warn_of_casts(torch::nn::Module& module, const Communicator& communicator,
                   const ShardedOptions& options);

}  // namespace lockstep::shard
