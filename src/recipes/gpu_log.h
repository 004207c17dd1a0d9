#pragma once

#include <memory>

namespace lockstep {
class Callback;
}

namespace lockstep::recipes {

// Logs how busy the GPUs of each node are while a training runs: the first rank of a node
// that trains on GPUs writes gpu.csv in the run folder (see track/gpu_monitor.h); on
// further nodes gpu_node1.csv and so on. Two callbacks: it starts and it stops.
struct GpuLog {
  GpuLog();

  std::shared_ptr<Callback> start;
  std::shared_ptr<Callback> stop;
};

}  // namespace lockstep::recipes
