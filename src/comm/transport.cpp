#include "comm/transport.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "base/environment.h"
#include "base/progress.h"
#include "cluster/amd_gpus.h"
#include "comm/backends.h"
#include "comm/lifeline.h"
#include "comm/plugin.h"
#include "comm/shm/layout.h"
#include "comm/shm/peer.h"
#include "comm/shm/shm_backend.h"

namespace lockstep::comm {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr below(const StorePtr& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

BackendPtr make_gloo_backend(const TransportRequest& request, const StorePtr& store, int rank, int size) {
  const GlooOptions options{request.options.timeout, request.options.connect_timeout,
                            request.options.interface, request.rendezvous_address,
                            request.may_be_mixed ? nullptr : request.secret};
  return make_gloo_backend(store, rank, size, options);
}

Transport make_gloo(const TransportRequest& request) {
  return {make_gloo_backend(request, request.store, request.rank, request.size), "gloo",
          Transport::Devices::kAny};
}

BackendPtr make_shm(const TransportRequest& request, const StorePtr& store, int rank, int size) {
  auto backend = make_shm_backend(store, rank, size, request.options.connect_timeout);
  backend->setTimeout(request.options.timeout);
  return backend;
}

Transport make_shm(const TransportRequest& request) {
  return {make_shm(request, request.store, request.rank, request.size), "shm", Transport::Devices::kCpu};
}

Transport make_hierarchical(const TransportRequest& request, const HostLayout& layout) {
  const auto host = static_cast<size_t>(layout.host_of[static_cast<size_t>(request.rank)]);
  const int local_rank = layout.local_rank_of[static_cast<size_t>(request.rank)];
  const auto num_local = static_cast<int>(layout.hosts[host].size());
  HierarchicalChannels channels;
  if (num_local > 1) {
    for (auto [channel, name] : {std::pair(&channels.up, "up"), {&channels.down, "down"}}) {
      *channel = make_shm(request, below(request.store, fmt::format("host{}/{}", host, name)), local_rank,
                          num_local);
    }
  }
  if (local_rank == 0) {
    channels.cross =
        make_gloo_backend(request, below(request.store, "cross"), static_cast<int>(host), layout.num_hosts());
  }
  channels.flat = make_gloo_backend(request, below(request.store, "flat"), request.rank, request.size);
  return {make_hierarchical_backend(request.rank, layout, std::move(channels), request.options.timeout),
          "shm+gloo", Transport::Devices::kCpu};
}

// CPU ranks: all on one host, one on each host, or in between.
Transport make_auto_on_cpu(const TransportRequest& request) {
  const std::string mine = request.host_identity.empty() ? shm::host_identity() : request.host_identity;
  const HostLayout layout = layout_of(
      exchange_identities(*request.store, request.rank, request.size, mine, request.options.connect_timeout));
  if (layout.most_ranks_on_a_host() == 1 || layout.most_ranks_on_a_host() > shm::kMaxRanks)
    return make_gloo(request);
  if (layout.num_hosts() == 1) return make_shm(request);
  return make_hierarchical(request, layout);
}

PluginRequest plugin_request(const TransportRequest& request) {
  return {request.store,
          request.rank,
          request.size,
          request.job_ranks,
          request.options.timeout,
          request.options.device_index};
}

// A thread that was left in NCCL uses objects that the end of the process would destroy.
void end_without_destructors() {
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

// The rank of the group that died or left first.
std::optional<int> departed_rank(Lifeline& lifeline, const std::vector<int>& job_ranks) {
  const auto departure = lifeline.first_departure(std::chrono::milliseconds(0));
  return departure ? rank_in_group(job_ranks, departure->rank) : std::nullopt;
}

// NCCL connects without a time limit, and does not notice that a rank died before it connected.
// In these cases the thread is left in NCCL: the program is about to end.
BackendPtr connect_nccl(const TransportRequest& request, const PluginRequest& wanted) {
  if (request.size == 1) return make_plugin_backend("cuda", wanted);
  std::packaged_task<BackendPtr()> task([wanted] { return make_plugin_backend("cuda", wanted); });
  std::future<BackendPtr> backend = task.get_future();
  std::thread(std::move(task)).detach();
  constexpr std::chrono::milliseconds kPollInterval{20};
  const auto deadline = std::chrono::steady_clock::now() + request.options.connect_timeout;
  while (backend.wait_for(kPollInterval) != std::future_status::ready) {
    const auto rank = request.lifeline ? departed_rank(*request.lifeline, request.job_ranks) : std::nullopt;
    if (rank) {
      end_without_destructors();
      throw CommError("comm",
                      fmt::format("rank {} died or left while rank {} of {} connected, backend nccl", *rank,
                                  request.rank, request.size),
                      CommError::Recovery::kRebuild, rank);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      end_without_destructors();
      throw CommError("comm",
                      fmt::format("rank {} of {} could not connect within {} ms, backend nccl: not all ranks "
                                  "came, or the network interface that NCCL chose does not reach them (set "
                                  "NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO prints what it does)",
                                  request.rank, request.size, request.options.connect_timeout.count()),
                      CommError::Recovery::kRebuild);
    }
  }
  return backend.get();
}

// What this build or machine lacks for NCCL: "; sentence", or "".
std::string missing_for_nccl() {
  // With AMD's GPUs only, the CUDA library would not help.
  const std::string amd = cluster::explain_amd_gpus(base::Environment::of_process());
  if (!amd.empty()) return "; " + amd;
  if (plugin_exists("cuda")) return "";
  return fmt::format("; this build has no CUDA library (liblockstep_cuda.so); to get it: {}", kBuildCuda);
}

Transport make_nccl(const TransportRequest& request) {
  if (request.options.device_index < 0) {
    throw ConfigError("comm",
                      fmt::format("backend nccl needs a CUDA device for rank {}: device_index is {}{}",
                                  request.rank, request.options.device_index, missing_for_nccl()));
  }
  PluginRequest wanted = plugin_request(request);
  wanted.share_device = ranks_share_devices();
  if (request.size > 1) {
    wanted.started = [](const char* name) { base::Progress::of_process().collective_started(name); };
    wanted.ended = [] { base::Progress::of_process().collective_finished(); };
  }
  if (request.lifeline) {
    wanted.departed = [lifeline = request.lifeline, job_ranks = request.job_ranks] {
      return departed_rank(*lifeline, job_ranks);
    };
  }
  return {connect_nccl(request, wanted), "nccl", Transport::Devices::kCuda, wanted.failure};
}

Transport make_fake(const TransportRequest& request, const char* name) {
  return {make_fake_backend(request.rank, request.size), name, Transport::Devices::kAny};
}

// A connected rank may close its group while others still connect to it; they would take that for a
// failure.
void wait_until_all_connected(const TransportRequest& request) {
  if (request.store->add("connected", 1) == request.size) {
    request.store->set("all_connected", "yes");
  }
  request.store->wait({"all_connected"}, request.options.connect_timeout);
}

Transport make_by_name(const TransportRequest& request) {
  const std::string& name = request.options.backend;
  if (name == "fake") return make_fake(request, "fake");
  if (name == "auto" && request.size == 1) return make_fake(request, "none");
  if (name == "auto")
    return request.options.device_index >= 0 ? make_nccl(request) : make_auto_on_cpu(request);
  if (name == "shm") return make_shm(request);
  if (name == "gloo") return make_gloo(request);
  if (name == "mpi")
    return {make_plugin_backend("mpi", plugin_request(request)), "mpi", Transport::Devices::kCpu};
  if (name == "nccl") return make_nccl(request);
  throw ConfigError("comm",
                    fmt::format("backend is not one of auto, gloo, nccl, mpi, shm, fake: '{}'", name));
}

}  // namespace

std::optional<int> rank_in_group(const std::vector<int>& job_ranks, int job_rank) {
  const auto found = std::find(job_ranks.begin(), job_ranks.end(), job_rank);
  if (found == job_ranks.end()) return std::nullopt;
  return static_cast<int>(found - job_ranks.begin());
}

Transport make_transport(const TransportRequest& request) {
  Transport transport = make_by_name(request);
  if (request.size > 1 && request.options.backend != "fake" && !request.may_be_mixed) {
    wait_until_all_connected(request);
  }
  return transport;
}

}  // namespace lockstep::comm
