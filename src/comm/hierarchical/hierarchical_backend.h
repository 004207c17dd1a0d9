#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/hierarchical/pipeline.h"
#include "comm/host_layout.h"

namespace lockstep::comm {

// The groups that a hierarchical backend is composed of.
struct HierarchicalChannels {
  // The ranks of this host, by their order in the layout; null for a host of one.
  // Two, so that one collective can go up while another comes down.
  c10::intrusive_ptr<c10d::Backend> up;
  c10::intrusive_ptr<c10d::Backend> down;
  // The leaders of the hosts; null on other ranks.
  c10::intrusive_ptr<c10d::Backend> cross;
  // All ranks, for what gains nothing from the hierarchy.
  c10::intrusive_ptr<c10d::Backend> flat;
};

// CPU ranks on several hosts: fast inside a host, one rank of each on the network.
//
// A reduction combines the contributions of a host in rank order, then those of the
// hosts; every rank gets the same bits. gather, scatter and all_to_all go through
// the flat group, as send and recv do between hosts. One thread at a time, abort()
// apart; operations move inside wait() and isCompleted().
class HierarchicalBackend final : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, HostLayout layout, HierarchicalChannels channels,
                      std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "hierarchical"; }
  void abort() override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

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
  int host() const { return layout_.host_of[static_cast<size_t>(getRank())]; }
  bool same_host(int peer) const { return layout_.host_of[static_cast<size_t>(peer)] == host(); }
  int local_rank_of(int rank) const { return layout_.local_rank_of[static_cast<size_t>(rank)]; }
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const;

  // A message inside the host, which must end when a rank elsewhere dies.
  c10::intrusive_ptr<c10d::Work> abortable(c10d::OpType operation,
                                           c10::intrusive_ptr<c10d::Work> message) const;
  // The stages of an in-place all-reduce of `tensor`, scaled first where it averages.
  std::vector<Stage> all_reduce_stages(at::Tensor tensor, const c10d::ReduceOp& op,
                                       std::chrono::milliseconds timeout);
  // The last stage of a collective whose result the leader has in `tensor`. `prepare`
  // runs before it starts, on every rank.
  Stage down_stage(at::Tensor tensor, std::chrono::milliseconds timeout, std::function<void()> prepare = {});

  const HostLayout layout_;
  const HierarchicalChannels channels_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Pipeline> pipeline_;
};

}  // namespace lockstep::comm
