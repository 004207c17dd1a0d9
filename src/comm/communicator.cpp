// Communicator: joining a job, the collectives, and Work.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <numeric>

#include "comm/communicator_impl.h"
#include "comm/gloo_device.h"
#include "comm/job_store.h"
#include "comm/plugin.h"

namespace lockstep {
namespace {

// The host towards which the network interface is chosen: the rendezvous host, or this machine's
// own name if the rendezvous is a file.
std::string rendezvous_host(const RankMap& map) {
  switch (map.rendezvous.kind) {
    case Rendezvous::Kind::kTcp: return map.rendezvous.address;
    case Rendezvous::Kind::kFile: return map.host;
    case Rendezvous::Kind::kNone: break;
  }
  return "";
}

c10::intrusive_ptr<c10d::Store> open_store_of_job(const RankMap& map, std::chrono::milliseconds timeout) {
  const bool has_secret =
      map.rendezvous.kind == Rendezvous::Kind::kTcp && map.rendezvous.secret != Rendezvous::Secret::kNone;
  return has_secret ? comm::open_job_store(map, comm::bounded(timeout)) : open_store(map, timeout);
}

// A secret of the ranks of this attempt of the job, provided that only they read their store. With it
// they authenticate each other on all other connections.
base::JobToken share_secret(c10d::Store& store, int rank) {
  constexpr char kKey[] = "secret";
  if (rank == 0) store.set(kKey, base::make_token());
  return base::JobToken(store.get_to_str(kKey));  // waits for it
}

std::shared_ptr<comm::Lifeline> join_lifeline(c10d::Store& store, const base::JobToken& secret,
                                              const RankMap& map, const CommunicatorOptions& options) {
  const comm::OperationContext where{"connect", options.backend, map.rank, map.world_size,
                                     options.connect_timeout};
  try {
    return comm::Lifeline::join(store, secret, map.rank, map.world_size,
                                comm::numeric_local_address(options.interface, rendezvous_host(map)),
                                options.connect_timeout);
  } catch (...) {
    std::rethrow_exception(comm::translate_failure(std::current_exception(), where));
  }
}

// NCCL reports two ranks on one device as "invalid usage", without their names.
void claim_device(c10d::Store& store, const RankMap& map, const CommunicatorOptions& options) {
  const bool over_nccl = options.backend == "nccl" || options.backend == "auto";
  if (options.device_index < 0 || !over_nccl || comm::ranks_share_devices()) return;
  const std::string uuid = comm::list_cuda_devices().at(static_cast<size_t>(options.device_index)).uuid;
  const std::string own = fmt::format("{} on {}", map.rank, map.host);
  const std::vector<uint8_t> answer =
      store.compareSet("device/" + uuid, {}, std::vector<uint8_t>(own.begin(), own.end()));
  const std::string owner(answer.begin(), answer.end());
  if (owner == own) return;
  throw ConfigError(
      "comm", fmt::format("two ranks on one device, which nccl does not allow: ranks {} and {} both use "
                          "{}; start one rank a GPU, or use backend gloo",
                          owner, own, uuid));
}

// The host at which the store was reached; empty if it is not a TCPStore.
std::string address_of(c10::intrusive_ptr<c10d::Store> store) {
  // Plain casts: c10::dynamic_intrusive_pointer_cast leaks what it cannot cast.
  if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    store = prefix->getUnderlyingNonPrefixStore();
  }
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.get());
  return tcp != nullptr ? tcp->getHost() : "";
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

c10d::ReduceOp to_c10d(ReduceOp op, int size) {
  // The mean over one rank is its sum, which integers allow too.
  if (op == ReduceOp::kMean && size == 1) return c10d::ReduceOp::SUM;
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kMean: return c10d::ReduceOp::AVG;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::UNUSED;
}

// c10d's gather and scatter take a list of blocks on the root and an empty list elsewhere.
std::vector<std::vector<at::Tensor>> root_blocks(bool is_root, const at::Tensor& whole, int size) {
  if (!is_root) return {};
  return {comm::wire_view(whole).chunk(size)};
}

int64_t num_bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

constexpr int64_t kMaxDims = 8;

// dtype, number of dimensions, dimensions.
using DtypeAndShape = std::array<int64_t, 2 + kMaxDims>;

DtypeAndShape shape_of(const at::Tensor& tensor) {
  DtypeAndShape shape{static_cast<int64_t>(tensor.scalar_type()), tensor.dim()};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.begin() + 2);
  return shape;
}

at::IntArrayRef sizes_in(const DtypeAndShape& shape) {
  return at::IntArrayRef(shape.data() + 2, static_cast<size_t>(shape[1]));
}

// Equal except for the first dimension.
bool compatible(DtypeAndShape a, DtypeAndShape b) {
  a[2] = b[2];
  return a == b;
}

at::Tensor byte_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.data_ptr()));
  return tensor;
}

std::string bytes_in(const at::Tensor& tensor) {
  const at::Tensor local = tensor.cpu();
  return std::string(reinterpret_cast<const char*>(local.const_data_ptr()),
                     static_cast<size_t>(local.numel()));
}

}  // namespace

Communicator Communicator::connect(const RankMap& map, const CommunicatorOptions& options) {
  return comm::connect_job(map, options, "");
}

Communicator comm::connect_job(const RankMap& map, const CommunicatorOptions& options,
                               const std::string& host_identity) {
  TransportRequest request;
  request.rank = map.rank;
  request.size = map.world_size;
  request.options = options;
  request.host_identity = host_identity;
  request.rendezvous_address = rendezvous_host(map);
  request.job_ranks = all_ranks(map.world_size);

  std::shared_ptr<Lifeline> lifeline;
  if (map.world_size == 1) {
    request.store = c10::make_intrusive<c10d::HashStore>();
  } else if (options.backend != "fake") {
    // A restarted job must not find the keys of an earlier attempt.
    request.store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("lockstep/{}", map.generation),
                                                           open_store_of_job(map, options.connect_timeout));
    request.secret = std::make_shared<const base::JobToken>(share_secret(*request.store, map.rank));
    lifeline = join_lifeline(*request.store, *request.secret, map, options);
    claim_device(*request.store, map, options);
  }
  return make_group(std::move(request), std::move(lifeline));
}

Communicator::Communicator() : impl_(comm::make_group({}, nullptr).impl()) {}

Communicator make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               const CommunicatorOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ConfigError("comm", fmt::format("rank is not one of the group's: rank {}, size {}", rank, size));
  }
  comm::TransportRequest request;
  request.rendezvous_address = address_of(store);
  request.store = std::move(store);
  request.rank = rank;
  request.size = size;
  request.options = options;
  request.job_ranks = all_ranks(size);
  request.may_be_mixed = options.backend == "gloo" || options.backend == "nccl";
  return comm::make_group(std::move(request), nullptr);
}

c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator) {
  const comm::Transport& transport = communicator.impl()->transport();
  return transport.name == "none" ? nullptr : transport.backend;
}

int Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->size(); }
const std::string& Communicator::backend() const { return impl_->transport().name; }

std::optional<Communicator> Communicator::subgroup(const std::vector<int>& ranks) const {
  const auto check = impl_->check("subgroup");
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= size() ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    check.fail(fmt::format("ranks must be distinct ranks of the group: [{}]", fmt::join(ranks, ", ")));
  }
  // Counted on every rank, members or not, so that all agree on the prefix in the store.
  const int index = impl_->next_subgroup();
  if (!std::binary_search(sorted.begin(), sorted.end(), rank())) {
    return std::nullopt;
  }
  return impl_->make_subgroup(ranks, index, impl_->options());
}

at::Tensor Communicator::allocate(int64_t numel, const at::Tensor& like) const {
  const auto& backend = impl_->transport().backend;
  const auto options = like.options().requires_grad(false);
  if (!backend->supportsTensorAlloc(like.device().index())) {
    return at::empty({numel}, options);
  }
  try {
    return backend->allocateTensor(numel, options);
  } catch (...) {
    std::rethrow_exception(impl_->explain(std::current_exception(), "allocate", {}));
  }
}

// --- collectives ---
//
// They check the arguments, flatten the tensors and call c10d. Empty tensors are empty on every
// rank: there is nothing to exchange, and not every backend accepts them.

Work Communicator::broadcast(const at::Tensor& tensor, int root, Timeout timeout) const {
  const auto check = impl_->check("broadcast");
  check.tensor("tensor", tensor);
  check.root(root);
  if (tensor.numel() == 0) return {};
  return impl_->start("broadcast", num_bytes(tensor), timeout, [&](c10d::Backend& backend, auto limit) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = limit;
    return backend.broadcast(tensors, options);
  });
}

Work Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) const {
  const auto check = impl_->check("all_reduce");
  check.tensor("tensor", tensor);
  check.reducible("tensor", tensor, op);
  if (tensor.numel() == 0) return {};
  return impl_->start("all_reduce", num_bytes(tensor), timeout, [&](c10d::Backend& backend, auto limit) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op, size());
    options.timeout = limit;
    return backend.allreduce(tensors, options);
  });
}

Work Communicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                  Timeout timeout) const {
  const auto check = impl_->check("reduce_scatter");
  check.blocks("input", input, "output", output);
  check.reducible("input", input, op);
  if (output.numel() == 0) return {};
  return impl_->start("reduce_scatter", num_bytes(input), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op, size());
    options.timeout = limit;
    return backend._reduce_scatter_base(out, in, options);
  });
}

Work Communicator::all_gather(const at::Tensor& output, const at::Tensor& input, Timeout timeout) const {
  impl_->check("all_gather").blocks("output", output, "input", input);
  if (input.numel() == 0) return {};
  return impl_->start("all_gather", num_bytes(output), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    c10d::AllgatherOptions options;
    options.timeout = limit;
    return backend._allgather_base(out, in, options);
  });
}

Work Communicator::gather(const at::Tensor& output, const at::Tensor& input, int root,
                          Timeout timeout) const {
  const auto check = impl_->check("gather");
  const bool is_root = root == rank();
  check.root(root);
  check.tensor("input", input);
  if (is_root) {
    check.blocks("output", output, "input", input);
  }
  if (input.numel() == 0) return {};
  return impl_->start("gather", num_bytes(input) * size(), timeout, [&](c10d::Backend& backend, auto limit) {
    auto outputs = root_blocks(is_root, output, size());
    std::vector<at::Tensor> inputs{comm::wire_view(input)};
    c10d::GatherOptions options;
    options.rootRank = root;
    options.timeout = limit;
    return backend.gather(outputs, inputs, options);
  });
}

Work Communicator::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                           Timeout timeout) const {
  const auto check = impl_->check("scatter");
  const bool is_root = root == rank();
  check.root(root);
  check.tensor("output", output);
  if (is_root) {
    check.blocks("input", input, "output", output);
  }
  if (output.numel() == 0) return {};
  return impl_->start("scatter", num_bytes(output) * size(), timeout,
                      [&](c10d::Backend& backend, auto limit) {
                        std::vector<at::Tensor> outputs{comm::wire_view(output)};
                        auto inputs = root_blocks(is_root, input, size());
                        c10d::ScatterOptions options;
                        options.rootRank = root;
                        options.timeout = limit;
                        return backend.scatter(outputs, inputs, options);
                      });
}

Work Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input, Timeout timeout) const {
  impl_->check("all_to_all").exchange(output, input);
  if (input.numel() == 0) return {};
  return impl_->start("all_to_all", num_bytes(input), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    std::vector<int64_t> equal_splits;
    c10d::AllToAllOptions options;
    options.timeout = limit;
    return backend.alltoall_base(out, in, equal_splits, equal_splits, options);
  });
}

Work Communicator::send(const at::Tensor& tensor, int destination, int tag, Timeout timeout) const {
  const auto check = impl_->check("send");
  check.message("tensor", tensor);
  check.peer("destination", destination);
  return impl_->start_message("send", timeout, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    return backend.send(tensors, destination, tag);
  });
}

Work Communicator::recv(const at::Tensor& tensor, int source, int tag, Timeout timeout) const {
  const auto check = impl_->check("recv");
  check.message("tensor", tensor);
  check.peer("source", source);
  return impl_->start_message("recv", timeout, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    return backend.recv(tensors, source, tag);
  });
}

void Communicator::barrier(Timeout timeout) const {
  impl_
      ->start("barrier", 0, timeout,
              [&](c10d::Backend& backend, auto limit) {
                c10d::BarrierOptions options;
                options.timeout = limit;
                return backend.barrier(options);
              })
      .wait();
}

// --- tensors and bytes whose length only one rank knows ---

std::vector<at::Tensor> Communicator::all_gather_uneven(const at::Tensor& input, Timeout timeout) const {
  const auto check = impl_->check("all_gather_uneven");
  check.tensor("input", input);
  if (input.dim() < 1 || input.dim() > kMaxDims) {
    check.fail(
        fmt::format("input must have 1 to {} dimensions: [{}]", kMaxDims, fmt::join(input.sizes(), ", ")));
  }
  at::NoGradGuard no_grad;
  const DtypeAndShape mine = shape_of(input);
  std::vector<DtypeAndShape> shapes(static_cast<size_t>(size()));
  const auto to_tensor = [](void* data, int64_t count) { return at::from_blob(data, {count}, at::kLong); };
  at::Tensor all = at::empty({size() * static_cast<int64_t>(mine.size())},
                             at::TensorOptions(at::kLong).device(input.device()));
  all_gather(all, to_tensor(const_cast<int64_t*>(mine.data()), mine.size()).to(input.device()), timeout)
      .wait();
  to_tensor(shapes.data(), all.numel()).copy_(all);
  impl_->throw_if_failed("all_gather_uneven", timeout);

  int64_t longest = 0;
  for (size_t peer = 0; peer < shapes.size(); ++peer) {
    if (!compatible(shapes[peer], mine)) {
      check.fail(fmt::format(
          "tensors differ in more than their first dimension: rank {} has {} [{}], this rank {} [{}]", peer,
          at::toString(static_cast<at::ScalarType>(shapes[peer][0])), fmt::join(sizes_in(shapes[peer]), ", "),
          at::toString(input.scalar_type()), fmt::join(input.sizes(), ", ")));
    }
    longest = std::max(longest, c10::multiply_integers(sizes_in(shapes[peer])));
  }
  at::Tensor padded = at::zeros({longest}, input.options().requires_grad(false));
  padded.narrow(0, 0, input.numel()).copy_(input.view(-1));
  at::Tensor gathered = at::empty({longest * size()}, padded.options());
  all_gather(gathered, padded, timeout).wait();

  std::vector<at::Tensor> result;
  for (size_t peer = 0; peer < shapes.size(); ++peer) {
    const at::IntArrayRef sizes = sizes_in(shapes[peer]);
    const at::Tensor block =
        gathered.narrow(0, static_cast<int64_t>(peer) * longest, c10::multiply_integers(sizes));
    result.push_back(block.clone().view(sizes));
  }
  return result;
}

std::string Communicator::broadcast_bytes(std::string bytes, int root, Timeout timeout) const {
  impl_->check("broadcast_bytes").root(root);
  const at::Device device = impl_->device();
  const at::Tensor length =
      at::full({1}, static_cast<int64_t>(bytes.size()), at::TensorOptions(at::kLong).device(device));
  broadcast(length, root, timeout).wait();
  const auto num_bytes = length.item<int64_t>();
  impl_->throw_if_failed("broadcast_bytes", timeout);
  const at::Tensor buffer = rank() == root
                                ? byte_tensor(bytes).to(device)
                                : at::empty({num_bytes}, at::TensorOptions(at::kByte).device(device));
  broadcast(buffer, root, timeout).wait();
  if (rank() == root) return bytes;
  std::string received = bytes_in(buffer);
  impl_->throw_if_failed("broadcast_bytes", timeout);
  return received;
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes, Timeout timeout) const {
  std::vector<std::string> result;
  for (const at::Tensor& tensor : all_gather_uneven(byte_tensor(bytes).to(impl_->device()), timeout)) {
    result.push_back(bytes_in(tensor));
  }
  impl_->throw_if_failed("all_gather_bytes", timeout);
  return result;
}

std::vector<std::string> comm::gather_bytes(const Communicator& group, const std::string& bytes, int root) {
  const at::Device device = group.impl()->device();
  const at::Tensor lengths = at::empty({group.size()}, at::TensorOptions(at::kLong).device(device));
  group.all_gather(lengths, at::full({1}, static_cast<int64_t>(bytes.size()), lengths.options())).wait();
  const int64_t longest = lengths.max().item<int64_t>();
  at::Tensor padded = at::zeros({longest}, at::TensorOptions(at::kByte).device(device));
  padded.narrow(0, 0, static_cast<int64_t>(bytes.size())).copy_(byte_tensor(bytes));
  at::Tensor gathered;
  if (group.rank() == root) gathered = at::empty({longest * group.size()}, padded.options());
  group.gather(gathered, padded, root).wait();
  std::vector<std::string> result;
  for (int rank = 0; rank < group.size() && group.rank() == root; ++rank) {
    result.push_back(bytes_in(gathered.narrow(0, rank * longest, lengths[rank].item<int64_t>())));
  }
  return result;
}

void Communicator::meet(const std::string& purpose, std::chrono::milliseconds patience) const {
  impl_->meet(purpose, patience);
}

// --- Work ---

void Work::wait() {
  if (impl_ == nullptr) return;
  if (impl_->failure) {
    std::rethrow_exception(impl_->failure);
  }
  if (impl_->work == nullptr) return;
  impl_->reported.resume(impl_->operation);
  try {
    impl_->work->wait(impl_->wait_timeout);
    impl_->group->throw_if_failed(impl_->operation, impl_->timeout);
  } catch (...) {
    impl_->failure = impl_->group->explain(std::current_exception(), impl_->operation, impl_->timeout);
    std::rethrow_exception(impl_->failure);
  }
  impl_->work = nullptr;
  impl_->reported.finish();
}

void Work::set_aside() {
  if (impl_ != nullptr) impl_->reported.pause();
}

bool Work::done() {
  return impl_ == nullptr || impl_->failure || impl_->work == nullptr || impl_->work->isCompleted();
}

}  // namespace lockstep
