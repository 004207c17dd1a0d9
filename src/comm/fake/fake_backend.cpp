#include "comm/fake/fake_backend.h"

#include "comm/completed_work.h"

namespace lockstep::comm {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

WorkPtr FakeBackend::broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) {
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::BROADCAST);
}

WorkPtr FakeBackend::allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) {
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::ALLREDUCE);
}

WorkPtr FakeBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions&) {
  output.view(-1).copy_(input.view({getSize(), -1})[getRank()]);
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::_REDUCE_SCATTER_BASE);
}

WorkPtr FakeBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  output.view({getSize(), -1}).copy_(input.view({1, -1}));
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::_ALLGATHER_BASE);
}

WorkPtr FakeBackend::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                            const c10d::GatherOptions& options) {
  if (options.rootRank == getRank()) {
    for (at::Tensor& block : outputs.at(0)) {
      block.copy_(inputs.at(0));
    }
  }
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::GATHER);
}

WorkPtr FakeBackend::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                             const c10d::ScatterOptions& options) {
  if (options.rootRank == getRank()) {
    outputs.at(0).copy_(inputs.at(0).at(getRank()));
  }
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::SCATTER);
}

WorkPtr FakeBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                                   std::vector<int64_t>&, const c10d::AllToAllOptions&) {
  output.view({getSize(), -1}).copy_(input.view({getSize(), -1})[getRank()]);
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::ALLTOALL_BASE);
}

WorkPtr FakeBackend::send(std::vector<at::Tensor>&, int, int) {
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::SEND);
}

WorkPtr FakeBackend::recv(std::vector<at::Tensor>&, int, int) {
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::RECV);
}

WorkPtr FakeBackend::barrier(const c10d::BarrierOptions&) {
  return c10::make_intrusive<CompletedWork>(getRank(), OpType::BARRIER);
}

}  // namespace lockstep::comm
