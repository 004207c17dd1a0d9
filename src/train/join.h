#pragma once

#include <lockstep/train_config.h>
#include <lockstep/world.h>

#include <memory>

namespace lockstep::train {

// Makes this process the rank that the map says: picks the device, connects to the
// peers, and checks that all ranks agree (world size, version, distinct devices).
// Blocks until all ranks are there. ConfigError, CommError.
std::unique_ptr<World> join_world(const RankMap& map, const TrainConfig& config);

}  // namespace lockstep::train
