#pragma once

#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "train/train_state.h"

namespace lockstep {
class World;
}

namespace lockstep::train {

// A training's state as a snapshot, and back. Weights are under "model." and their
// names, as everything that reads checkpoints expects; all else is under "lockstep/".
// Collective; the content is on rank 0 alone, which writes it, unless the model is divided:
// then each rank has its parts.
checkpoint::Snapshot take_snapshot(const TrainState& state, const World& world, const std::string& config);

// ConfigError: another model or another optimizer, and what differs; the state is
// unchanged then as far as the model goes.
void restore_snapshot(const checkpoint::Reader& reader, TrainState& state, const World& world, uint64_t seed);

}  // namespace lockstep::train
