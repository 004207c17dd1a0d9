#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/mpi/mpi_group.h"
#include "comm/mpi/mpi_work.h"

namespace lockstep::comm {

// A c10d backend over nonblocking MPI calls; CPU tensors. One thread at a time in the
// process, abort() apart. An MPI error throws, and breaks the group.
class MpiBackend final : public c10d::Backend {
 public:
  MpiBackend(int rank, const std::vector<int>& job_ranks, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { group_->mark_broken(); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  // Starts an operation: `call(request)` makes the MPI call, whose name is `name`.
  template <typename Call>
  c10::intrusive_ptr<c10d::Work> start(c10d::OpType operation, const char* name,
                                       std::chrono::milliseconds timeout, std::vector<at::Tensor> tensors,
                                       Call&& call, std::function<void()> then = {});
  // The same for calls on a tensor of any length: MPI counts in int, so that a long
  // tensor is several `call(data, count, request)`.
  template <typename Call>
  c10::intrusive_ptr<c10d::Work> start_in_pieces(c10d::OpType operation, const char* name,
                                                 std::chrono::milliseconds timeout, const at::Tensor& tensor,
                                                 Call&& call);

  const std::shared_ptr<MpiGroup> group_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::comm
