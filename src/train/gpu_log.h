#pragma once

#include <chrono>
#include <memory>
#include <vector>

namespace lockstep {
class Callback;
}

namespace lockstep::train {

// Logs the GPUs of the job while a training runs (TrainConfig::gpu_log_every): the first rank on a GPU
// appends lines to gpu.csv in the run folder, on further nodes to gpu_node1.csv and so on. On CPUs nothing is
// written. Returns two callbacks: the first starts the log and the second ends it.
std::vector<std::shared_ptr<Callback>> gpu_log(std::chrono::milliseconds period);

}  // namespace lockstep::train
