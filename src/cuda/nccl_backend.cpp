#include "cuda/nccl_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "torch_private/c10d.h"

namespace lockstep::cuda {
namespace {

using NcclCollectives = torch_private::WithOldNames<c10d::ProcessGroupNCCL>;

class NcclBackend final : public NcclCollectives {
 public:
  using NcclCollectives::NcclCollectives;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    c10d::AllreduceOptions changed = options;
    changed.reduceOp = scaled(options.reduceOp);
    return ProcessGroupNCCL::allreduce(tensors, changed);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    c10d::ReduceScatterOptions changed = options;
    changed.reduceOp = scaled(options.reduceOp);
    return NcclCollectives::_reduce_scatter_base(output, input, changed);
  }

 private:
  // NCCL's own average divides after the sum.
  c10d::ReduceOp scaled(const c10d::ReduceOp& op) const {
    return op.op_ == c10d::ReduceOp::AVG ? torch_private::premultiplied_sum(1.0 / getSize()) : op;
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const comm::PluginRequest& request) {
  const int num_devices = c10::cuda::device_count();
  if (num_devices == 0) {
    throw ConfigError("nccl",
                      fmt::format("backend nccl: no CUDA device is visible to rank {}", request.rank));
  }
  if (request.device_index < 0 || request.device_index >= num_devices) {
    throw ConfigError("nccl", fmt::format("backend nccl: rank {} has no CUDA device {}: {} visible",
                                          request.rank, request.device_index, num_devices));
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(request.device_index));
  const c10::cuda::CUDAGuard guard(device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto backend =
      c10::make_intrusive<NcclBackend>(request.store, request.rank, request.size, std::move(options));
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace lockstep::cuda
