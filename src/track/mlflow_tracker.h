#pragma once

#include <lockstep/tracker.h>

#include <memory>

#include "track/mlflow_settings.h"

namespace lockstep::track {

// Sends a run to an MLflow server from a thread of its own. Writes go into a queue with
// a bound and return at once; while the server cannot be reached they wait there, and
// those beyond the bound are lost. What the server refuses is lost alone. The first
// trouble is said by a warning, and close() tells how much was lost.
std::unique_ptr<Tracker> make_mlflow_tracker(const MlflowSettings& settings);

}  // namespace lockstep::track
