#pragma once

#include <memory>

namespace lockstep {
class Callback;
}

namespace lockstep::recipes {

// Logs how busy the job's GPUs are while a training runs: the first rank on a GPU adds its
// lines to gpu.csv in the run folder (see track/gpu_monitor.h), on further nodes to
// gpu_node1.csv and so on. A rank may see no GPU but its own, so each one asks for that.
// Two callbacks: it starts and it stops.
struct GpuLog {
  GpuLog();

  std::shared_ptr<Callback> start;
  std::shared_ptr<Callback> stop;
};

}  // namespace lockstep::recipes
