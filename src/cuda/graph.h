#pragma once

#include <memory>

#include "comm/plugin.h"

namespace lockstep::cuda {

// A CUDA graph on this thread's device.
std::unique_ptr<comm::DeviceGraph> make_graph();

}  // namespace lockstep::cuda
