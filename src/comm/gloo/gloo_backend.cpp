#include "comm/gloo/gloo_backend.h"

#include <lockstep/error.h>
#include <csignal>

#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/gloo/gloo_device.h"
#include "comm/then_work.h"
#include "torch_private/c10d.h"

namespace lockstep::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooCollectives = torch_private::WithOldNames<c10d::ProcessGroupGloo>;

// Starting an operation writes to LibTorch's flight recorder, which is one for the
// process and finds its groups in a map without a lock: two groups in two threads
// would crash.
template <typename Start>
WorkPtr start_alone(Start&& start) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return start();
}

// Averages as every backend of ours: each contribution times 1/size, then the sum.
class GlooBackend final : public GlooCollectives {
 public:
  using GlooCollectives::GlooCollectives;

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::broadcast(tensors, options); });
  }

  // Gloo has no AVG.
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    c10d::AllreduceOptions sum = options;
    if (options.reduceOp.op_ == c10d::ReduceOp::AVG) {
      at::NoGradGuard no_grad;
      for (at::Tensor& tensor : tensors) {
        tensor.mul_(1.0 / getSize());
      }
      sum.reduceOp = c10d::ReduceOp::SUM;
    }
    return start_alone([&] { return ProcessGroupGloo::allreduce(tensors, sum); });
  }

  // Gloo has no reduce-scatter either: c10d's is an all-reduce too, and knows no AVG.
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    // Where the output is a part of the input, the input is lost anyway.
    const bool in_place = output.is_alias_of(input);
    at::Tensor whole = in_place ? input.detach() : input.detach().clone();
    std::vector<at::Tensor> tensors{whole};
    c10d::AllreduceOptions all_reduce;
    all_reduce.reduceOp = options.reduceOp;
    all_reduce.timeout = options.timeout;
    return c10::make_intrusive<ThenWork>(getRank(), c10d::OpType::_REDUCE_SCATTER_BASE,
                                         allreduce(tensors, all_reduce),
                                         [output, whole, rank = getRank(), size = getSize()] {
                                           at::NoGradGuard no_grad;
                                           output.view(-1).copy_(whole.view({size, -1})[rank]);
                                         });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return start_alone([&] { return GlooCollectives::_allgather_base(output, input, options); });
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::gather(outputs, inputs, options); });
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::scatter(outputs, inputs, options); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return start_alone(
        [&] { return GlooCollectives::alltoall_base(output, input, output_splits, input_splits, options); });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    return start_alone([&] { return ProcessGroupGloo::send(tensors, destination, tag); });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    return start_alone([&] { return ProcessGroupGloo::recv(tensors, source, tag); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start_alone([&] { return ProcessGroupGloo::barrier(options); });
  }

  void abort() override {
    for (const auto& context : contexts_) {
      for (int rank = 0; rank < getSize(); ++rank) {
        if (auto* pair = reinterpret_cast<gloo::transport::tcp::Pair*>(context->getPair(rank).get())) {
          pair->signalExceptionExternal("aborted because a rank of the job is gone");
        }
      }
    }
  }
};

}  // namespace

// Gloo writes to its sockets in a way that raises SIGPIPE once the peer is gone, which
// would end this process before it can say so. Python ignores the signal for everyone.
static void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options) {
  ignore_broken_pipes();
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.connect_timeout);
  const auto devices =
      choose_gloo_devices(options.interface, base::Environment::of_process(), options.rendezvous_address);
  for (const GlooDevice& device : devices) {
    gloo->devices.push_back(device.interface.empty()
                                ? c10d::ProcessGroupGloo::createDeviceForHostname(device.address)
                                : c10d::ProcessGroupGloo::createDeviceForInterface(device.interface));
  }
  gloo->threads = static_cast<int>(devices.size()) * 2;
  auto backend = c10::make_intrusive<GlooBackend>(store, rank, size, std::move(gloo));
  backend->setTimeout(options.timeout);
  return backend;
}

}  // namespace lockstep::comm
