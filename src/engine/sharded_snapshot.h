#pragma once

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"

namespace torch::nn {
class Module;
}

namespace lockstep {
class ShardedModel;
}

namespace lockstep::engine {

// What this rank has of a divided model, its masters and its optimizer: its parts under the
// names that a whole model's snapshot has, so that each can be read as the other. What is
// not divided (buffers, frozen parameters, at stage 0 all) is rank 0's. What offload keeps in a
// file is read when it is written: before the model's next step.
void add_parts(checkpoint::Snapshot& snapshot, const torch::nn::Module& module, const ShardedModel& sharded,
               bool is_main);

// Each rank reads its own parts only. Buffers may be in another floating-point dtype.
// Collective. ConfigError: another model, and what differs.
void restore_weight_parts(const checkpoint::Reader& reader, const torch::nn::Module& module,
                          ShardedModel& sharded);
void restore_optimizer_parts(const checkpoint::Reader& reader, ShardedModel& sharded);

}  // namespace lockstep::engine
