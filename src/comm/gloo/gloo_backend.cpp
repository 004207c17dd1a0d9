#include "comm/gloo/gloo_backend.h"

#include <lockstep/error.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/gloo/gloo_device.h"
#include "comm/then_work.h"

namespace lockstep::comm {
namespace {

// Averages as every backend of ours: each contribution times 1/size, then the sum.
class GlooBackend final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  // Gloo has no AVG.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (options.reduceOp.op_ != c10d::ReduceOp::AVG) {
      return ProcessGroupGloo::allreduce(tensors, options);
    }
    at::NoGradGuard no_grad;
    for (at::Tensor& tensor : tensors) {
      tensor.mul_(1.0 / getSize());
    }
    c10d::AllreduceOptions sum = options;
    sum.reduceOp = c10d::ReduceOp::SUM;
    return ProcessGroupGloo::allreduce(tensors, sum);
  }

  // Gloo has no reduce-scatter either: c10d's is an all-reduce too, and knows no AVG.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    at::NoGradGuard no_grad;
    at::Tensor whole = input.clone();
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

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options) {
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
