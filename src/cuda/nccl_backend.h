#pragma once

#include <c10/util/intrusive_ptr.h>

#include "comm/plugin.h"

namespace lockstep::cuda {

// c10d::ProcessGroupNCCL on the rank's device, connected before it returns.
// ReduceOp::AVG is each contribution times 1/size, then the sum, as in all backends.
// ConfigError: no such device.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const comm::PluginRequest& request);

}  // namespace lockstep::cuda
