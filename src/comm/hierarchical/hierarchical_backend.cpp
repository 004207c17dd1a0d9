#include "comm/hierarchical/hierarchical_backend.h"

#include "comm/completed_work.h"
#include "comm/hierarchical/abortable_work.h"

namespace lockstep::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using Milliseconds = std::chrono::milliseconds;

WorkPtr start_all_reduce(const BackendPtr& group, at::Tensor tensor, const c10d::ReduceOp& op,
                         Milliseconds timeout) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  return group->allreduce(tensors, options);
}

WorkPtr start_broadcast(const BackendPtr& group, at::Tensor tensor, int root, Milliseconds timeout) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout;
  return group->broadcast(tensors, options);
}

WorkPtr start_all_gather(const BackendPtr& group, at::Tensor output, at::Tensor input, Milliseconds timeout) {
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  return group->_allgather_base(output, input, options);
}

// Puts what the leaders gathered, hosts padded to equal size, into rank order.
void order_by_rank(const HostLayout& layout, const at::Tensor& gathered, const at::Tensor& output) {
  at::NoGradGuard no_grad;
  const at::Tensor from = gathered.view({layout.num_hosts(), layout.most_ranks_on_a_host(), -1});
  const at::Tensor to = output.view({layout.num_ranks(), -1});
  for (size_t rank = 0; rank < layout.host_of.size(); ++rank) {
    to[static_cast<int64_t>(rank)].copy_(from[layout.host_of[rank]][layout.local_rank_of[rank]]);
  }
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(int rank, HostLayout layout, HierarchicalChannels channels,
                                         Milliseconds timeout)
    : Backend(rank, layout.num_ranks()),
      layout_(std::move(layout)),
      channels_(std::move(channels)),
      timeout_(timeout),
      pipeline_(std::make_shared<Pipeline>(
          rank, [host = layout_.hosts[static_cast<size_t>(layout_.host_of[static_cast<size_t>(rank)])],
                 hosts = layout_.hosts](Channel channel, int of_channel) {
            const auto index = static_cast<size_t>(of_channel);
            return channel == Channel::kCross ? hosts[index].front() : host[index];
          })) {}

void HierarchicalBackend::abort() {
  pipeline_->abort();
  for (const BackendPtr& group : {channels_.up, channels_.down, channels_.cross, channels_.flat}) {
    if (group) {
      group->abort();
    }
  }
}

bool HierarchicalBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  return channels_.up && channels_.up->supportsTensorAlloc(device);
}

at::Tensor HierarchicalBackend::allocateTensor(long size, at::TensorOptions options) {
  return channels_.up->allocateTensor(size, options);
}

Milliseconds HierarchicalBackend::limit(Milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
}

Stage HierarchicalBackend::down_stage(at::Tensor tensor, Milliseconds timeout,
                                      std::function<void()> prepare) {
  return {Channel::kDown, [group = channels_.down, tensor, timeout, prepare]() -> WorkPtr {
            if (prepare) {
              prepare();
            }
            if (!group) {
              return c10::make_intrusive<CompletedWork>(0, c10d::OpType::BROADCAST);
            }
            return start_broadcast(group, tensor, 0, timeout);
          }};
}

std::vector<Stage> HierarchicalBackend::all_reduce_stages(at::Tensor tensor, const c10d::ReduceOp& op,
                                                          Milliseconds timeout) {
  c10d::ReduceOp plain = op;
  if (op.op_ == c10d::ReduceOp::AVG) {
    at::NoGradGuard no_grad;
    tensor.mul_(1.0 / getSize());
    plain = c10d::ReduceOp::SUM;
  }
  std::vector<Stage> stages;
  for (const auto& [channel, group] :
       {std::pair(Channel::kUp, channels_.up), {Channel::kCross, channels_.cross}}) {
    if (group) {
      stages.push_back({channel, [group = group, tensor, plain, timeout] {
                          return start_all_reduce(group, tensor, plain, timeout);
                        }});
    }
  }
  stages.push_back(down_stage(tensor, timeout));
  return stages;
}

WorkPtr HierarchicalBackend::allreduce(std::vector<at::Tensor>& tensors,
                                       const c10d::AllreduceOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  return pipeline_->submit(c10d::OpType::ALLREDUCE,
                           all_reduce_stages(tensors.at(0), options.reduceOp, timeout), timeout);
}

WorkPtr HierarchicalBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const at::Tensor whole = input.detach().clone();
  return pipeline_->submit(c10d::OpType::_REDUCE_SCATTER_BASE,
                           all_reduce_stages(whole, options.reduceOp, timeout), timeout,
                           [output, whole, rank = getRank(), size = getSize()] {
                             at::NoGradGuard no_grad;
                             output.view(-1).copy_(whole.view({size, -1})[rank]);
                           });
}

WorkPtr HierarchicalBackend::broadcast(std::vector<at::Tensor>& tensors,
                                       const c10d::BroadcastOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const at::Tensor tensor = tensors.at(0);
  const auto root = static_cast<int>(options.rootRank);
  std::vector<Stage> stages;
  if (same_host(root) && channels_.up) {
    stages.push_back({Channel::kUp, [group = channels_.up, tensor, local = local_rank_of(root), timeout] {
                        return start_broadcast(group, tensor, local, timeout);
                      }});
  }
  if (channels_.cross) {
    const int root_host = layout_.host_of[static_cast<size_t>(root)];
    stages.push_back({Channel::kCross, [group = channels_.cross, tensor, root_host, timeout] {
                        return start_broadcast(group, tensor, root_host, timeout);
                      }});
  }
  if (!same_host(root)) {
    stages.push_back(down_stage(tensor, timeout));
  }
  return pipeline_->submit(c10d::OpType::BROADCAST, std::move(stages), timeout);
}

WorkPtr HierarchicalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const int64_t block = input.numel();
  const auto num_local = static_cast<int64_t>(layout_.hosts[static_cast<size_t>(host())].size());
  const int64_t most_local = layout_.most_ranks_on_a_host();
  // Leaders exchange hosts of equal size; the padding is never looked at.
  const at::Tensor padded = at::empty({(channels_.cross ? most_local : num_local) * block}, input.options());
  const at::Tensor local = padded.narrow(0, 0, num_local * block);
  std::vector<Stage> stages;
  if (channels_.up) {
    stages.push_back({Channel::kUp, [group = channels_.up, local, input, timeout] {
                        return start_all_gather(group, local, input, timeout);
                      }});
  } else {
    local.copy_(input.view(-1));
  }
  std::function<void()> order;
  if (channels_.cross) {
    const bool regular = layout_.is_regular();
    const at::Tensor gathered =
        regular ? output : at::empty({layout_.num_hosts() * most_local * block}, input.options());
    stages.push_back({Channel::kCross, [group = channels_.cross, gathered, padded, timeout] {
                        return start_all_gather(group, gathered, padded, timeout);
                      }});
    if (!regular) {
      order = [layout = layout_, gathered, output] { order_by_rank(layout, gathered, output); };
    }
  }
  stages.push_back(down_stage(output, timeout, order));
  return pipeline_->submit(c10d::OpType::_ALLGATHER_BASE, std::move(stages), timeout);
}

WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  c10d::BarrierOptions inner = options;
  inner.timeout = limit(options.timeout);
  std::vector<Stage> stages;
  for (const auto& [channel, group] : {std::pair(Channel::kUp, channels_.up),
                                       {Channel::kCross, channels_.cross},
                                       {Channel::kDown, channels_.down}}) {
    if (group) {
      stages.push_back({channel, [group = group, inner] { return group->barrier(inner); }});
    }
  }
  return pipeline_->submit(c10d::OpType::BARRIER, std::move(stages), inner.timeout);
}

WorkPtr HierarchicalBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                    std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) {
  return channels_.flat->gather(outputs, inputs, options);
}

WorkPtr HierarchicalBackend::scatter(std::vector<at::Tensor>& outputs,
                                     std::vector<std::vector<at::Tensor>>& inputs,
                                     const c10d::ScatterOptions& options) {
  return channels_.flat->scatter(outputs, inputs, options);
}

WorkPtr HierarchicalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
  return channels_.flat->alltoall_base(output, input, output_splits, input_splits, options);
}

WorkPtr HierarchicalBackend::abortable(c10d::OpType operation, WorkPtr message) const {
  return c10::make_intrusive<AbortableWork>(
      getRank(), operation, std::move(message), [pipeline = pipeline_] { return pipeline->is_aborted(); },
      timeout_);
}

WorkPtr HierarchicalBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  if (same_host(destination)) {
    return abortable(c10d::OpType::SEND, channels_.up->send(tensors, local_rank_of(destination), tag));
  }
  return channels_.flat->send(tensors, destination, tag);
}

WorkPtr HierarchicalBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  if (same_host(source)) {
    return abortable(c10d::OpType::RECV, channels_.up->recv(tensors, local_rank_of(source), tag));
  }
  return channels_.flat->recv(tensors, source, tag);
}

}  // namespace lockstep::comm
