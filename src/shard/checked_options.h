#pragma once

#include <lockstep/sharded_model.h>

#include <vector>

#include "grad/model_agreement.h"

namespace lockstep::shard {

// As configurations have it: "none", "cpu", "nvme".
const char* name_of(OffloadDevice device);

// The options themselves. ConfigError: one of them makes no sense, or two of them do not go
// together.
ShardedOptions checked(ShardedOptions options);

// What all ranks must agree on.
std::vector<grad::ModelFact> facts_of(const ShardedOptions& options);

}  // namespace lockstep::shard
