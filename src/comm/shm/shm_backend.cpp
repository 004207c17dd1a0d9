#include "comm/shm/shm_backend.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <numeric>
#include <optional>
#include <vector>

#include "comm/shm/group.h"

namespace lockstep::comm {
namespace shm {
namespace {

using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using CollectivePtr = c10::intrusive_ptr<CollectiveWork>;

// --- from tensors to bytes ---
//
// The checks throw ConfigError with the operation's name.

[[noreturn]] void refuse(const char* operation, const std::string& why) {
  throw ConfigError("shm", fmt::format("{}: {}", operation, why));
}

std::string describe_tensor(const at::Tensor& tensor) {
  return fmt::format("{} {} on {}", tensor.numel(), c10::toString(tensor.scalar_type()),
                     tensor.device().str());
}

std::optional<ElementType> element_type_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return ElementType::kFloat;
    case c10::ScalarType::Double: return ElementType::kDouble;
    case c10::ScalarType::Half: return ElementType::kHalf;
    case c10::ScalarType::BFloat16: return ElementType::kBFloat16;
    case c10::ScalarType::Char: return ElementType::kInt8;
    case c10::ScalarType::Short: return ElementType::kInt16;
    case c10::ScalarType::Int: return ElementType::kInt32;
    case c10::ScalarType::Long: return ElementType::kInt64;
    case c10::ScalarType::Byte: return ElementType::kUint8;
    case c10::ScalarType::Bool: return ElementType::kBool;
    default: return std::nullopt;
  }
}

std::optional<Reduction> reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return Reduction::kSum;
    case c10d::ReduceOp::AVG: return Reduction::kMean;
    case c10d::ReduceOp::PRODUCT: return Reduction::kProduct;
    case c10d::ReduceOp::MIN: return Reduction::kMin;
    case c10d::ReduceOp::MAX: return Reduction::kMax;
    case c10d::ReduceOp::BAND: return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR: return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR: return Reduction::kBitXor;
    default: return std::nullopt;
  }
}

// Defined, dense, contiguous and on the CPU.
void check_tensor(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    refuse(operation, "got an undefined tensor");
  }
  if (!tensor.device().is_cpu() || tensor.layout() != c10::kStrided || !tensor.is_contiguous()) {
    refuse(operation,
           fmt::format("needs a dense contiguous tensor on the CPU, got {}{}; use .contiguous(), or "
                       "another backend for other devices",
                       describe_tensor(tensor),
                       tensor.layout() != c10::kStrided ? ", sparse" : ", maybe not contiguous"));
  }
}

void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    refuse(operation, fmt::format("tensors differ in type: {} and {}", c10::toString(a.scalar_type()),
                                  c10::toString(b.scalar_type())));
  }
}

// `whole` is `count` blocks like `block`.
void check_blocks(const char* operation, const at::Tensor& whole, const at::Tensor& block, int count) {
  check_tensor(operation, whole);
  check_same_dtype(operation, whole, block);
  if (whole.numel() != block.numel() * count) {
    refuse(operation,
           fmt::format("needs {} blocks of {} elements, got {}", count, block.numel(), whole.numel()));
  }
}

void check_list(const char* operation, const std::vector<at::Tensor>& tensors, int count) {
  if (tensors.size() != static_cast<size_t>(count)) {
    refuse(operation, fmt::format("needs one tensor a rank: got {} for {} ranks", tensors.size(), count));
  }
  for (const auto& tensor : tensors) {
    check_tensor(operation, tensor);
  }
}

int check_root(const char* operation, int64_t root, int size) {
  if (root < 0 || root >= size) {
    refuse(operation, fmt::format("no such rank: {} of {}", root, size));
  }
  return static_cast<int>(root);
}

// The one tensor, or the one list, that c10d wraps in a vector.
const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    refuse(operation, fmt::format("takes one tensor, got {}", tensors.size()));
  }
  check_tensor(operation, tensors[0]);
  return tensors[0];
}

const std::vector<at::Tensor>& only_list(const char* operation,
                                         const std::vector<std::vector<at::Tensor>>& lists, int count) {
  if (lists.size() != 1) {
    refuse(operation, fmt::format("takes one list of tensors, got {}", lists.size()));
  }
  check_list(operation, lists[0], count);
  return lists[0];
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Call call_for(Kind kind, const at::Tensor& tensor, int root = 0) {
  return {.kind = kind,
          .dtype = tensor.scalar_type(),
          .root = root,
          .numel = static_cast<uint64_t>(tensor.numel())};
}

void set_reduction(CollectiveWork& work, const c10d::ReduceOp& op) {
  const auto reduction = reduction_of(op);
  const auto type = element_type_of(work.call.dtype);
  if (!reduction || !type || !can_reduce(*reduction, *type)) {
    refuse("reduction", fmt::format("{} cannot be combined by {}", c10::toString(work.call.dtype),
                                    reduction ? to_string(*reduction) : "this operation"));
  }
  work.call.reduction = *reduction;
  work.element_type = *type;
}

// This rank contributes the tensor as `blocks` equal blocks. `exposes`: peers read it, not only
// this rank.
void expose(CollectiveWork& work, const at::Tensor& tensor, int blocks, bool exposes = true) {
  work.block_bytes = tensor.nbytes() / blocks;
  work.exposes = exposes;
  for (int i = 0; i < blocks; ++i) {
    work.sources.push_back(bytes_of(tensor) + i * work.block_bytes);
  }
  work.tensors.push_back(tensor);
}

// The same with one tensor for each block, each like `like`.
void expose_list(CollectiveWork& work, const std::vector<at::Tensor>& tensors, const at::Tensor& like) {
  work.exposes = true;
  work.contiguous_sources = false;
  for (const auto& tensor : tensors) {
    check_blocks("list of inputs", tensor, like, 1);
    work.sources.push_back(bytes_of(tensor));
    work.tensors.push_back(tensor);
  }
}

void add_output(CollectiveWork& work, const at::Tensor& output) {
  work.outputs.push_back(bytes_of(output));
  work.tensors.push_back(output);
}

// The result of each rank goes to one of these, each like `like`.
void add_outputs(CollectiveWork& work, const std::vector<at::Tensor>& outputs, const at::Tensor& like) {
  for (const auto& output : outputs) {
    check_blocks("list of outputs", output, like, 1);
    add_output(work, output);
  }
}

void add_output_blocks(CollectiveWork& work, const at::Tensor& output, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    work.outputs.push_back(bytes_of(output) + i * (output.nbytes() / blocks));
  }
  work.tensors.push_back(output);
}

// Splits the first dimension by `splits`, or evenly if it is empty.
void split_blocks(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                  c10::SmallVector<std::byte*, 2>& blocks, std::vector<uint64_t>& block_bytes) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const bool evenly = splits.empty();
  // Each one separately: in the sum a negative one could hide one that is too large.
  for (size_t rank = 0; rank < splits.size(); ++rank) {
    if (splits[rank] < 0 || splits[rank] > rows) {
      refuse("all_to_all",
             fmt::format("the part of rank {} cannot have {} of {} rows", rank, splits[rank], rows));
    }
  }
  if (evenly ? rows % size != 0
             : splits.size() != static_cast<size_t>(size) ||
                   std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows) {
    refuse("all_to_all", fmt::format("the first dimension of {} does not split into {} parts as given", rows,
                                     evenly ? size : splits.size()));
  }
  const uint64_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
  std::byte* begin = bytes_of(tensor);
  for (int rank = 0; rank < size; ++rank) {
    blocks.push_back(begin);
    block_bytes.push_back(row_bytes * static_cast<uint64_t>(evenly ? rows / size : splits[rank]));
    begin += block_bytes.back();
  }
}

// A flat tensor in memory of the group; in ordinary memory if it is empty or the group has no
// region left.
at::Tensor allocate_tensor(OwnRegions& regions, int64_t numel, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    refuse("allocate", fmt::format("only on the CPU, not on {}", options.device().str()));
  }
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  auto memory = bytes == 0 ? nullptr : regions.allocate(bytes);
  if (memory == nullptr) return at::empty({numel}, options);
  std::byte* data = memory.get();
  return at::from_blob(
      data, {numel}, [memory = std::move(memory)](void*) {}, options);
}

// --- the backend ---

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
    add_output(*work, output);
    return start(std::move(work));
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const auto& output = only("reduce_scatter", outputs);
    auto work = make(OpType::REDUCE_SCATTER, call_for(Kind::kReduceScatter, output), options.timeout);
    set_reduction(*work, options.reduceOp);
    work->block_bytes = output.nbytes();
    expose_list(*work, only_list("reduce_scatter", inputs, size_), output);
    add_output(*work, output);
    return start(std::move(work));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check_tensor("reduce_scatter", output);
    check_blocks("reduce_scatter", input, output, size_);
    auto work = make(OpType::_REDUCE_SCATTER_BASE, call_for(Kind::kReduceScatter, output), options.timeout);
    set_reduction(*work, options.reduceOp);
    expose(*work, input, size_);
    add_output(*work, output);
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
    work->call.numel = 0;  // may differ between ranks: the first round exchanges the sizes
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
}  // namespace shm

c10::intrusive_ptr<c10d::Backend> make_shm_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                   std::chrono::milliseconds timeout) {
  if (size < 1 || size > shm::kMaxRanks || rank < 0 || rank >= size) {
    throw ConfigError("shm",
                      size > shm::kMaxRanks
                          ? fmt::format("backend shm takes up to {} ranks of one host, and there are {}: set "
                                        "backend to gloo",
                                        shm::kMaxRanks, size)
                          : fmt::format("a group needs 0 <= rank < size: rank {}, size {}", rank, size));
  }
  auto group = std::make_shared<shm::Group>(shm::connect_peers(*store, rank, size, timeout), rank);
  return c10::make_intrusive<shm::ShmBackend>(std::move(group), timeout);
}

}  // namespace lockstep::comm
