#include "cuda/nccl_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <stdlib.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cuda/nccl_watch.h"
#include "torch_private/c10d.h"

namespace lockstep::cuda {
namespace {

using NcclCollectives = torch_private::WithOldNames<c10d::ProcessGroupNCCL>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// How much later than NcclWatch c10d's watchdog acts.
constexpr std::chrono::minutes kBackstop{1};

class NcclBackend final : public NcclCollectives {
 public:
  NcclBackend(const comm::PluginRequest& request, c10::intrusive_ptr<Options> options)
      : NcclCollectives(request.store, request.rank, request.size, std::move(options)),
        watch_(request, [this] { abort(); }) {
    // Else c10d would end the process without naming the rank that caused the failure. With
    // TORCH_NCCL_BLOCKING_WAIT c10d handles no errors itself.
    if (asyncErrorHandling_ != c10d::NoHandling) asyncErrorHandling_ = c10d::CleanUpOnly;
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return watched("broadcast", options.timeout,
                   [&] { return NcclCollectives::broadcast(tensors, options); });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    c10d::AllreduceOptions changed = options;
    changed.reduceOp = scaled(options.reduceOp, tensors.front());
    return watched("all_reduce", options.timeout,
                   [&] { return NcclCollectives::allreduce(tensors, changed); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    c10d::ReduceScatterOptions changed = options;
    changed.reduceOp = scaled(options.reduceOp, input);
    return watched("reduce_scatter", options.timeout,
                   [&] { return NcclCollectives::_reduce_scatter_base(output, input, changed); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return watched("all_gather", options.timeout,
                   [&] { return NcclCollectives::_allgather_base(output, input, options); });
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return watched("gather", options.timeout,
                   [&] { return NcclCollectives::gather(outputs, inputs, options); });
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return watched("scatter", options.timeout,
                   [&] { return NcclCollectives::scatter(outputs, inputs, options); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return watched("all_to_all", options.timeout, [&] {
      return NcclCollectives::alltoall_base(output, input, output_splits, input_splits, options);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return watched("barrier", options.timeout, [&] { return NcclCollectives::barrier(options); });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    return watched(
        "send", c10d::kUnsetTimeout, [&] { return NcclCollectives::send(tensors, destination, tag); },
        destination);
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    return watched(
        "recv", c10d::kUnsetTimeout, [&] { return NcclCollectives::recv(tensors, source, tag); }, source);
  }

  // NCCL waits without a limit for pending operations before it closes a group.
  void shutdown() override {
    const bool healthy = watch_.drain();
    watch_.stop();
    if (healthy) NcclCollectives::shutdown();
  }

  void watch_stream(const char* operation) { watch_.add_stream(operation); }

 private:
  // Each contribution times 1/size, then the sum. For bfloat16 NCCL's own average computes that,
  // and c10d's sum of scaled contributions is 0: it passes the factor as a float, of which NCCL
  // reads the lower half.
  c10d::ReduceOp scaled(const c10d::ReduceOp& op, const at::Tensor& tensor) const {
    if (op.op_ != c10d::ReduceOp::AVG || tensor.scalar_type() == at::kBFloat16) return op;
    return torch_private::premultiplied_sum(1.0 / getSize());
  }

  template <typename Call>
  WorkPtr watched(const char* operation, std::chrono::milliseconds timeout, const Call& call,
                  std::optional<int> peer = std::nullopt) {
    const auto limit = timeout == c10d::kUnsetTimeout ? watch_.default_timeout() : timeout;
    return watch_.watch(operation, limit, peer, call);
  }

  NcclWatch watch_;
};

// Makes ranks on one device look like ranks on separate hosts, which communicate over loopback.
void share_device(const comm::PluginRequest& request) {
  const int job_rank = request.job_ranks[static_cast<size_t>(request.rank)];
  ::setenv("NCCL_HOSTID", fmt::format("lockstep-rank-{}", job_rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
}

// Before it aborts a failed collective, c10d's watchdog waits a minute for a record of all operations
// to be written, and holds the lock that the next operation needs. Users who set the variable get
// the record.
void disable_record_on_timeout() {
  if (::getenv("TORCH_NCCL_DUMP_ON_TIMEOUT") != nullptr) return;
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);
}

// docs/comm.md documents what this warning would print.
void disable_warning_about_messages() {
  ::setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false", 0);
}

}  // namespace

void watch_stream(c10d::Backend& backend, const char* operation) {
  static_cast<NcclBackend&>(backend).watch_stream(operation);
}

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
  if (request.share_device) share_device(request);
  disable_record_on_timeout();
  disable_warning_about_messages();
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(request.device_index));
  const c10::cuda::CUDAGuard guard(device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  // NcclWatch comes first; c10d's watchdog acts if that hangs.
  options->timeout = request.timeout + kBackstop;
  auto backend = c10::make_intrusive<NcclBackend>(request, std::move(options));
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace lockstep::cuda
