#include "comm/shm/shm_backend.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/shm/group.h"
#include "comm/shm/tensor_arguments.h"

namespace lockstep::comm {
namespace {

using namespace shm;  // NOLINT: this file is the outside of that namespace
using c10d::OpType;
using shm::Call;  // not comm::Call, what an observer is told
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using CollectivePtr = c10::intrusive_ptr<CollectiveWork>;

class ShmBackend final : public c10d::Backend {
 public:
  ShmBackend(std::shared_ptr<Group> group, Milliseconds timeout)
      : c10d::Backend(group->rank(), group->size()), group_(std::move(group)), timeout_(timeout) {
    init();
  }
  ~ShmBackend() override { group_->close(); }

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }
  void shutdown() override { group_->close(); }
  c10d::ErrorType getError() override {
    return group_->failure() == nullptr ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return allocate_tensor(*group_->own_regions(), size, options);
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start(make(OpType::BARRIER, {.kind = Kind::kBarrier}, options.timeout));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const auto& tensor = only("broadcast", tensors);
    const int root = check_root("broadcast", options.rootRank, size_);
    auto work = make(OpType::BROADCAST, call_for(Kind::kBroadcast, tensor, root), options.timeout);
    const bool is_root = rank_ == root;
    expose(*work, tensor, 1, is_root);
    if (!is_root) {
      work->outputs.push_back(bytes_of(tensor));
    }
    return start(std::move(work));
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto& tensor = only("all_reduce", tensors);
    auto work = make(OpType::ALLREDUCE, call_for(Kind::kAllReduce, tensor), options.timeout);
    set_reduction(*work, options.reduceOp);
    expose(*work, tensor, 1);
    work->outputs.push_back(bytes_of(tensor));
    return start(std::move(work));
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const auto& tensor = only("reduce", tensors);
    const int root = check_root("reduce", options.rootRank, size_);
    auto work = make(OpType::REDUCE, call_for(Kind::kReduce, tensor, root), options.timeout);
    set_reduction(*work, options.reduceOp);
    expose(*work, tensor, 1, rank_ != root);
    if (rank_ == root) {
      work->outputs.push_back(bytes_of(tensor));
    }
    return start(std::move(work));
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const auto& input = only("all_gather", inputs);
    auto work = make(OpType::ALLGATHER, call_for(Kind::kAllGather, input), options.timeout);
    expose(*work, input, 1);
    add_outputs(*work, only_list("all_gather", outputs, size_), input);
    return start(std::move(work));
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    check_tensor("all_gather", input);
    check_blocks("all_gather", output, input, size_);
    auto work = make(OpType::_ALLGATHER_BASE, call_for(Kind::kAllGather, input), options.timeout);
    expose(*work, input, 1);
    add_output_blocks(*work, output, size_);
    return start(std::move(work));
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const auto& input = only("gather", inputs);
    const int root = check_root("gather", options.rootRank, size_);
    auto work = make(OpType::GATHER, call_for(Kind::kGather, input, root), options.timeout);
    expose(*work, input, 1, rank_ != root);
    if (rank_ == root) {
      add_outputs(*work, only_list("gather", outputs, size_), input);
    }
    return start(std::move(work));
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    const auto& output = only("scatter", outputs);
    const int root = check_root("scatter", options.rootRank, size_);
    auto work = make(OpType::SCATTER, call_for(Kind::kScatter, output, root), options.timeout);
    work->block_bytes = output.nbytes();
    if (rank_ == root) {
      expose_list(*work, only_list("scatter", inputs, size_), output);
    }
    work->outputs.push_back(bytes_of(output));
    work->tensors.push_back(output);
    return start(std::move(work));
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const auto& output = only("reduce_scatter", outputs);
    auto work = make(OpType::REDUCE_SCATTER, call_for(Kind::kReduceScatter, output), options.timeout);
    set_reduction(*work, options.reduceOp);
    work->block_bytes = output.nbytes();
    expose_list(*work, only_list("reduce_scatter", inputs, size_), output);
    work->outputs.push_back(bytes_of(output));
    work->tensors.push_back(output);
    return start(std::move(work));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check_tensor("reduce_scatter", output);
    check_blocks("reduce_scatter", input, output, size_);
    auto work = make(OpType::_REDUCE_SCATTER_BASE, call_for(Kind::kReduceScatter, output), options.timeout);
    set_reduction(*work, options.reduceOp);
    expose(*work, input, size_);
    work->outputs.push_back(bytes_of(output));
    work->tensors.push_back(output);
    return start(std::move(work));
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    check_tensor("all_to_all", output);
    check_tensor("all_to_all", input);
    check_same_dtype("all_to_all", output, input);
    auto work = make_all_to_all(OpType::ALLTOALL_BASE, input, options.timeout);
    split_blocks(output, output_splits, size_, work->outputs, work->output_bytes);
    split_blocks(input, input_splits, size_, work->sources, work->source_bytes);
    work->tensors = {output, input};
    return start(std::move(work));
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    check_list("all_to_all", outputs, size_);
    check_list("all_to_all", inputs, size_);
    auto work = make_all_to_all(OpType::ALLTOALL, inputs.front(), options.timeout);
    for (int rank = 0; rank < size_; ++rank) {
      check_same_dtype("all_to_all", outputs[rank], inputs[0]);
      work->outputs.push_back(bytes_of(outputs[rank]));
      work->output_bytes.push_back(outputs[rank].nbytes());
      work->sources.push_back(bytes_of(inputs[rank]));
      work->source_bytes.push_back(inputs[rank].nbytes());
    }
    work->tensors = outputs;
    work->tensors.insert(work->tensors.end(), inputs.begin(), inputs.end());
    return start(std::move(work));
  }

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return start_message(OpType::SEND, only("send", tensors), check_root("send", destination, size_), tag);
  }

  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return start_message(OpType::RECV, only("recv", tensors), check_root("recv", source, size_), tag);
  }

 private:
  CollectivePtr make(OpType type, const Call& call, Milliseconds timeout) {
    auto work = c10::make_intrusive<CollectiveWork>(group_, type,
                                                    timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
    work->call = call;
    work->element_bytes = c10::elementSize(call.dtype);
    return work;
  }

  CollectivePtr make_all_to_all(OpType type, const at::Tensor& input, Milliseconds timeout) {
    auto work = make(type, call_for(Kind::kAllToAll, input), timeout);
    work->call.numel = 0;  // may differ between ranks: the first round tells the sizes
    work->exposes = true;
    work->contiguous_sources = false;
    return work;
  }

  WorkPtr start(CollectivePtr work) {
    group_->start(work);
    return work;
  }

  WorkPtr start_message(OpType type, const at::Tensor& tensor, int peer, int tag) {
    auto work = c10::make_intrusive<MessageWork>(group_, type, timeout_);
    work->is_send = type == OpType::SEND;
    work->peer = peer;
    work->tag = tag;
    work->data = bytes_of(tensor);
    work->bytes = tensor.nbytes();
    work->tensors.push_back(tensor);
    group_->start(work);
    return work;
  }

  std::shared_ptr<Group> group_;
  Milliseconds timeout_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shm_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                   Milliseconds timeout) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    throw ConfigError("shm",
                      size > kMaxRanks
                          ? fmt::format("backend shm takes up to {} ranks of one host, and there are {}: set "
                                        "backend to gloo",
                                        kMaxRanks, size)
                          : fmt::format("a group needs 0 <= rank < size: rank {}, size {}", rank, size));
  }
  auto group = std::make_shared<Group>(meet(*store, rank, size, timeout), rank);
  return c10::make_intrusive<ShmBackend>(std::move(group), timeout);
}

}  // namespace lockstep::comm
