#pragma once

#include <c10/util/intrusive_ptr.h>

#include "comm/plugin.h"

namespace lockstep::cuda {

// c10d::ProcessGroupNCCL on the rank's device, with NcclWatch. Blocks until all ranks are connected.
// ReduceOp::AVG is each contribution times 1/size, then the sum, as in all backends. ConfigError: no
// such device.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const comm::PluginRequest& request);

// comm::watch_cuda_stream(). REQUIRES: make_nccl_backend() has made the backend.
void watch_stream(c10d::Backend& backend, const char* operation);

}  // namespace lockstep::cuda
