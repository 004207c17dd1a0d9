#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/backends.h"

namespace lockstep::comm {
namespace {

class FakeBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using OpType = c10d::OpType;

  FakeBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "fake"; }
  void setTimeout(std::chrono::milliseconds) override {}

  WorkPtr broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override {
    return completed(OpType::BROADCAST);
  }

  WorkPtr allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return completed(OpType::ALLREDUCE);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    output.view(-1).copy_(input.view({getSize(), -1})[getRank()]);
    return completed(OpType::_REDUCE_SCATTER_BASE);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    output.view({getSize(), -1}).copy_(input.view({1, -1}));
    return completed(OpType::_ALLGATHER_BASE);
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    if (options.rootRank == getRank()) {
      for (at::Tensor& block : outputs.at(0)) block.copy_(inputs.at(0));
    }
    return completed(OpType::GATHER);
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    if (options.rootRank == getRank()) outputs.at(0).copy_(inputs.at(0).at(getRank()));
    return completed(OpType::SCATTER);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    output.view({getSize(), -1}).copy_(input.view({getSize(), -1})[getRank()]);
    return completed(OpType::ALLTOALL_BASE);
  }

  WorkPtr send(std::vector<at::Tensor>&, int, int) override { return completed(OpType::SEND); }
  WorkPtr recv(std::vector<at::Tensor>&, int, int) override { return completed(OpType::RECV); }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return completed(OpType::BARRIER); }

 private:
  WorkPtr completed(OpType operation) const {
    return c10::make_intrusive<CompletedWork>(getRank(), operation);
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size) {
  return c10::make_intrusive<FakeBackend>(rank, size);
}

}  // namespace lockstep::comm
