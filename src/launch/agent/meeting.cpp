#include "launch/agent/meeting.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/host_lookup.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "cluster/topology.h"
#include "launch/agent/membership_thread.h"
#include "launch/rendezvous/describe.h"
#include "launch/rendezvous/join.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::seconds kStopMargin{30};
constexpr std::chrono::milliseconds kLongestStop{std::chrono::hours(24 * 365)};

// By what the launchers of a job without a token were given alike: its name and the endpoint. The
// host may know itself by another name than the others do.
std::vector<std::string> key_names(const RunOptions& options) {
  if (options.max_nodes == 1) return {};
  std::vector<std::string> names;
  for (const std::string& host : {options.meeting.host, cluster::host_name()}) {
    names.push_back(fmt::format("run-{}-{}-{}", options.run_id, host, options.meeting.port));
  }
  return names;
}

RendezvousOptions rendezvous_options(const RunOptions& options) {
  RendezvousOptions rendezvous;
  rendezvous.run_id = options.run_id;
  rendezvous.token = options.meeting.token;
  rendezvous.key_names = key_names(options);
  rendezvous.host = options.meeting.host;
  rendezvous.port = options.meeting.port;
  rendezvous.host_option = options.meeting.host_option;
  rendezvous.min_nodes = options.min_nodes;
  rendezvous.max_nodes = options.max_nodes;
  rendezvous.max_restarts = options.max_restarts;
  rendezvous.stall_timeout = options.stall_timeout;
  rendezvous.join_timeout = options.meeting.join_timeout;
  rendezvous.last_call_timeout = options.meeting.last_call_timeout;
  rendezvous.set_heartbeat_timeout(options.meeting.heartbeat_timeout);
  return rendezvous;
}

NodeInfo node_info(const RunOptions& options) {
  NodeInfo node;
  node.node_rank = options.meeting.node_rank;
  node.host = cluster::host_name();
  node.address = options.max_nodes == 1 ? options.store_addr : options.local_addr;
  node.local_world_size = options.local_world_size;
  node.pid = ::getpid();
  node.role = options.role;
  // A launcher whose loop is blocked (a dead file system) says nothing at all.
  if (options.max_nodes > 1) {
    node.stop_timeout = std::min(options.shutdown_timeout, kLongestStop) + options.kill_timeout + kStopMargin;
  }
  return node;
}

// Only this machine can bind to its own addresses.
bool is_ours(const addrinfo& address) {
  const base::UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

// Every address of this machine, in the family by which the host is known here:
// others may know it by another address than we do. nullopt: the host is not we.
std::optional<std::string> own_wildcard(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (is_ours(*address)) return address->ai_family == AF_INET6 ? "::" : "0.0.0.0";
  }
  return std::nullopt;
}

std::unique_ptr<Membership> join_open(base::EventLoop& loop, const RunOptions& options,
                                      MembershipListener& listener) {
  if (const std::optional<std::string> wildcard = own_wildcard(options.meeting.host)) {
    try {
      return host_job(loop, node_info(options), rendezvous_options(options), *wildcard, listener).membership;
    } catch (const ConfigError& error) {
      // Another launcher of this machine was faster.
      base::log_debug("run", "not the host: {}", error.what());
    }
  }
  return join_remote(loop, node_info(options), rendezvous_options(options), listener);
}

void check_host(const RunOptions& options) {
  if (const auto reason = base::find_unknown_host(options.meeting.host, base::kHostPatience)) {
    throw ConfigError("run",
                      describe_unknown_host(rendezvous_options(options), cluster::host_name(), *reason));
  }
}

std::unique_ptr<Membership> join_others(base::EventLoop& loop, const RunOptions& options,
                                        MembershipListener& listener) {
  const MeetingOptions& meeting = options.meeting;
  if (!meeting.is_host) return join_open(loop, options, listener);
  if (!*meeting.is_host) return join_remote(loop, node_info(options), rendezvous_options(options), listener);
  const std::optional<std::string> wildcard = own_wildcard(meeting.host);
  // Without --local-addr this node's ranks are told to meet there too.
  if (!wildcard && options.local_addr.empty()) check_host(options);
  return host_job(loop, node_info(options), rendezvous_options(options), wildcard.value_or("0.0.0.0"),
                  listener)
      .membership;
}

}  // namespace

std::unique_ptr<Membership> join_job(base::EventLoop& loop, const RunOptions& options,
                                     MembershipListener& listener, Keeper& keeper) {
  if (options.known_map) {
    return join_known(loop, *options.known_map, rendezvous_options(options), listener);
  }
  if (options.meeting.kind == MeetingOptions::Kind::kAlone) {
    return join_alone(loop, node_info(options), rendezvous_options(options), listener);
  }
  return std::make_unique<MembershipThread>(loop, listener, keeper,
                                            [&](base::EventLoop& own_loop, MembershipListener& own_listener) {
                                              return join_others(own_loop, options, own_listener);
                                            });
}

}  // namespace lockstep::launcher
