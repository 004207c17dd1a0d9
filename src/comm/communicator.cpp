#include <fmt/ranges.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <numeric>

#include "comm/communicator_impl.h"
#include "comm/plugin.h"

namespace lockstep {
namespace {

// The host that the group's store was reached at, where the store is a server.
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

}  // namespace

Communicator comm::make_group(TransportRequest request, std::shared_ptr<Lifeline> lifeline) {
  request.options.timeout = bounded(request.options.timeout);
  request.options.connect_timeout = bounded(request.options.connect_timeout);
  const OperationContext where{"connect", request.options.backend, request.rank, request.size,
                               request.options.connect_timeout};
  request.lifeline = lifeline;
  try {
    Transport transport = make_transport(request);
    return Communicator(
        std::make_shared<Communicator::Impl>(std::move(request), std::move(transport), std::move(lifeline)));
  } catch (...) {
    std::rethrow_exception(translate_failure(std::current_exception(), where));
  }
}

Communicator comm::make_host_group(const Communicator& group) {
  CommunicatorOptions options = group.impl()->options();
  if (group.impl()->transport().devices == Transport::Devices::kCuda) {
    options.backend = "auto";
    options.device_index = -1;
  }
  Communicator host_group =
      group.impl()->make_subgroup(all_ranks(group.size()), group.impl()->next_subgroup(), options);
  host_group.impl()->follow(group.impl());
  return host_group;
}

void comm::throw_if_failed(const Communicator& group, std::string_view operation) {
  group.impl()->throw_if_failed(operation, {});
}

void comm::watch_graph(const Communicator& group, const char* operation) {
  const Transport& transport = group.impl()->transport();
  if (group.size() > 1 && transport.failure) watch_cuda_stream(*transport.backend, operation);
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

at::Device Communicator::Impl::device() const {
  return transport_.devices == comm::Transport::Devices::kCuda
             ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(request_.options.device_index))
             : at::Device(at::kCPU);
}

Communicator Communicator::Impl::make_subgroup(const std::vector<int>& ranks, int index_in_group,
                                               const CommunicatorOptions& options) const {
  comm::TransportRequest request = request_;
  request.options = options;
  request.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  request.size = static_cast<int>(ranks.size());
  if (request.store) {
    request.store =
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("group{}", index_in_group), request.store);
  }
  request.job_ranks.clear();
  for (const int member : ranks) {
    request.job_ranks.push_back(request_.job_ranks[static_cast<size_t>(member)]);
  }
  return comm::make_group(std::move(request), lifeline_);
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
  // Counted on every rank, members or not, so that all agree on the name.
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

}  // namespace lockstep
