#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/communicator_impl.h"
#include "comm/gloo/gloo_device.h"
#include "comm/job_store.h"
#include "comm/plugin.h"

namespace lockstep {
namespace {

// A host by which the other ranks' machines are reached: the rendezvous, or, where
// that is a file, this machine's own name.
std::string meeting_host(const RankMap& map) {
  switch (map.rendezvous.kind) {
    case Rendezvous::Kind::kTcp: return map.rendezvous.address;
    case Rendezvous::Kind::kFile: return map.host;
    case Rendezvous::Kind::kNone: break;
  }
  return "";
}

c10::intrusive_ptr<c10d::Store> meet_at_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const bool has_secret =
      map.rendezvous.kind == Rendezvous::Kind::kTcp && map.rendezvous.secret != Rendezvous::Secret::kNone;
  return has_secret ? comm::open_job_store(map, comm::bounded(timeout)) : open_store(map, timeout);
}

// What the ranks of this life of the job alone know, as far as nobody else reads their store:
// by it they know each other on all their other connections.
base::JobToken share_secret(c10d::Store& store, const RankMap& map, std::chrono::milliseconds timeout) {
  constexpr char kKey[] = "secret";
  if (map.rank == 0) store.set(kKey, base::make_token());
  store.wait({kKey}, timeout);
  return base::JobToken(store.get_to_str(kKey));
}

std::shared_ptr<comm::Lifeline> join_lifeline(c10d::Store& store, const base::JobToken& secret,
                                              const RankMap& map, const CommunicatorOptions& options) {
  const comm::OperationContext where{"connect", options.backend, map.rank, map.world_size,
                                     options.connect_timeout};
  try {
    return comm::Lifeline::join(store, secret, map.rank, map.world_size,
                                comm::numeric_local_address(options.interface, meeting_host(map)),
                                options.connect_timeout);
  } catch (...) {
    std::rethrow_exception(comm::translate_failure(std::current_exception(), where));
  }
}

// NCCL answers two ranks on one device with "invalid usage" and no names.
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

}  // namespace

Communicator Communicator::connect(const RankMap& map, const CommunicatorOptions& options) {
  return comm::connect_job(map, options, "");
}

Communicator comm::connect_job(const RankMap& map, const CommunicatorOptions& options,
                               const std::string& host_identity) {
  comm::TransportRequest request;
  request.rank = map.rank;
  request.size = map.world_size;
  request.options = options;
  request.host_identity = host_identity;
  request.rendezvous_address = meeting_host(map);
  request.job_ranks.resize(static_cast<size_t>(map.world_size));
  std::iota(request.job_ranks.begin(), request.job_ranks.end(), 0);

  std::shared_ptr<comm::Lifeline> lifeline;
  if (map.world_size == 1) {
    request.store = c10::make_intrusive<c10d::HashStore>();
  } else if (options.backend != "fake") {
    // A restarted job must not find the keys of its earlier life.
    request.store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("lockstep/{}", map.generation),
                                                           meet_at_store(map, options.connect_timeout));
    request.secret = std::make_shared<const base::JobToken>(
        share_secret(*request.store, map, comm::bounded(options.connect_timeout)));
    lifeline = join_lifeline(*request.store, *request.secret, map, options);
    claim_device(*request.store, map, options);
  }
  return comm::make_group(std::move(request), std::move(lifeline));
}

}  // namespace lockstep
