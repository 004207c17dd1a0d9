#pragma once

#include <lockstep/weights.h>

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace lockstep {
class ShardedModel;
}

namespace lockstep::parallel {

// "lockstep/SECTION/NAME": the name of a tensor that is not one of the model's weights.
std::string name_under(std::string_view section, std::string_view name);

// Whole tensors under such names.
void add_section(checkpoint::Snapshot& snapshot, std::string_view section, const NamedTensors& tensors);
NamedTensors read_section(const checkpoint::Reader& reader, std::string_view section);

// The model's tensors in a checkpoint, without content.
struct SavedWeights {
  NamedTensors tensors;
  std::map<const void*, std::string> name_in_file;  // by tensor
};
SavedWeights saved_weights(const checkpoint::Reader& reader);

// --- a replicated model: each rank holds all ---

void add_weights(checkpoint::Snapshot& snapshot, const torch::nn::Module& module);
void add_optimizer(checkpoint::Snapshot& snapshot, const torch::nn::Module& module,
                   const torch::optim::Optimizer& optimizer);

// Weights are compared by names, shapes and dtypes before anything is read. ConfigError: another model
// or another optimizer, and what differs.
void restore_weights(const checkpoint::Reader& reader, const torch::nn::Module& module);
void restore_optimizer(const checkpoint::Reader& reader, const torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer);

// --- a sharded model ---

// Adds this rank's shards of weights and masters, and of optimizer state with add_shards(), under the names
// of a replicated model's snapshot, so that each can be loaded as the other. Rank 0 (`is_main`) adds what is
// not sharded: buffers, frozen parameters, at stage 0 all. What offload keeps in a file is read when the
// snapshot is written, which must end before the model's next step.
void add_weight_shards(checkpoint::Snapshot& snapshot, const torch::nn::Module& module,
                       const ShardedModel& sharded, bool is_main);
void add_shards(checkpoint::Snapshot& snapshot, const torch::nn::Module& module, const ShardedModel& sharded,
                bool is_main);

// Each rank reads its own shards only. Buffers may be in another floating-point dtype. Collective.
// ConfigError: another model, and what differs.
void restore_weight_shards(const checkpoint::Reader& reader, const torch::nn::Module& module,
                           ShardedModel& sharded);
void restore_optimizer_shards(const checkpoint::Reader& reader, ShardedModel& sharded);

}  // namespace lockstep::parallel
