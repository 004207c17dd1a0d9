#include "launcher/agent/join_job.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/network.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "cluster/node_resources.h"
#include "launcher/job.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/join.h"

namespace lockstep::launcher {
namespace {

// The lease lasts kLeaseParts / kTimeoutParts of the heartbeat timeout and is renewed kLeaseParts
// times while it lasts. So a process that stops running loses its workers before the other nodes,
// which wait for the whole timeout, continue without it.
constexpr int kTimeoutParts = 15;
constexpr int kLeaseParts = 10;

}  // namespace

MembershipThread::MembershipThread(base::EventLoop& loop, MembershipListener& listener, Keeper& keeper,
                                   const Join& join)
    : listener_(listener), events_(loop), keeper_(keeper) {
  membership_ = join(own_loop_, *this);
  thread_ = base::start_without_signals([this] { run(); });
}

MembershipThread::~MembershipThread() {
  own_loop_.post([this] { own_loop_.stop(); });
  thread_.join();
  own_loop_.cancel(lease_timer_);
}

void MembershipThread::run() {
  try {
    own_loop_.run();
  } catch (...) {
    keeper_.end();
    events_.push([error = std::current_exception()] { std::rethrow_exception(error); });
  }
}

void MembershipThread::call_membership(std::function<void(Membership&)> call) {
  own_loop_.post([this, call = std::move(call)] { call(*membership_); });
}

// --- calls from the membership ---

void MembershipThread::joined(std::chrono::milliseconds heartbeat_timeout) {
  lease_ = heartbeat_timeout * kLeaseParts / kTimeoutParts;
  own_loop_.cancel(lease_timer_);
  keep_lease();
}

void MembershipThread::keep_lease() {
  keeper_.renew(lease_);
  lease_timer_ =
      own_loop_.after(base::EventLoop::Clock::duration(lease_) / kLeaseParts, [this] { keep_lease(); });
}

uint16_t MembershipThread::reserve_store_port(int generation) {
  return listener_.reserve_store_port(generation);
}
void MembershipThread::start(const Generation& generation) {
  events_.push([this, generation] { listener_.start(generation); });
}
void MembershipThread::stop(int generation, const std::string& reason) {
  events_.push([this, generation, reason] { listener_.stop(generation, reason); });
}
void MembershipThread::note(const std::string& text) {
  events_.push([this, text] { listener_.note(text); });
}
void MembershipThread::stalled(int generation, const Stall& stall) {
  events_.push([this, generation, stall] { listener_.stalled(generation, stall); });
}

void MembershipThread::finish(const JobOutcome& outcome) {
  own_loop_.cancel(lease_timer_);
  // Drops a start() that the launcher's loop has not run yet: those workers must not start.
  events_.clear();
  events_.push([this, outcome] { listener_.finish(outcome); });
  keeper_.end();
}

// --- calls to the membership ---

void MembershipThread::worker_failed(const JobFailure& failure) {
  call_membership([failure](Membership& membership) { membership.worker_failed(failure); });
}
void MembershipThread::progress(int generation, const std::vector<RankView>& workers) {
  call_membership(
      [generation, workers](Membership& membership) { membership.progress(generation, workers); });
}
void MembershipThread::succeeded(int generation) {
  call_membership([generation](Membership& membership) { membership.succeeded(generation); });
}
void MembershipThread::stopped(int generation) {
  call_membership([generation](Membership& membership) { membership.stopped(generation); });
}
void MembershipThread::stuck(int generation, const std::string& reason) {
  call_membership([generation, reason](Membership& membership) { membership.stuck(generation, reason); });
}
void MembershipThread::leave(int signal) {
  call_membership([signal](Membership& membership) { membership.leave(signal); });
}

// --- join_job ---

namespace {

constexpr std::chrono::seconds kStopMargin{30};
constexpr std::chrono::milliseconds kLongestStop{std::chrono::hours(24 * 365)};

// Key files of a job without a token are named after what all its launchers have in common: the
// run id and the endpoint. The host may know itself by another name than the others do, so there
// is one for each name.
std::vector<std::string> key_names(const RunOptions& options) {
  if (options.max_nodes == 1) return {};
  std::vector<std::string> names;
  for (const std::string& host : {options.join.host, cluster::host_name()}) {
    names.push_back(fmt::format("run-{}-{}-{}", options.run_id, host, options.join.port));
  }
  return names;
}

RendezvousOptions rendezvous_options(const RunOptions& options) {
  RendezvousOptions rendezvous;
  rendezvous.run_id = options.run_id;
  rendezvous.token = options.join.token;
  rendezvous.key_names = key_names(options);
  rendezvous.host = options.join.host;
  rendezvous.port = options.join.port;
  rendezvous.host_option = options.join.host_option;
  rendezvous.min_nodes = options.min_nodes;
  rendezvous.max_nodes = options.max_nodes;
  rendezvous.max_restarts = options.max_restarts;
  rendezvous.stall_timeout = options.stall_timeout;
  rendezvous.join_timeout = options.join.join_timeout;
  rendezvous.last_call_timeout = options.join.last_call_timeout;
  rendezvous.set_heartbeat_timeout(options.join.heartbeat_timeout);
  return rendezvous;
}

NodeInfo node_info(const RunOptions& options) {
  NodeInfo node;
  node.node_rank = options.join.node_rank;
  node.host = cluster::host_name();
  node.address = options.max_nodes == 1 ? options.store_addr : options.local_addr;
  node.local_world_size = options.local_world_size;
  node.pid = ::getpid();
  node.role = options.role;
  // Needed for a launcher whose loop is blocked, by a dead file system for example.
  if (options.max_nodes > 1) {
    node.stop_timeout = std::min(options.shutdown_timeout, kLongestStop) + options.kill_timeout + kStopMargin;
  }
  return node;
}

// Whether this machine has the address: only then bind() succeeds.
bool is_ours(const addrinfo& address) {
  const base::UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

// The wildcard address of the family by which `host` is known here, because others may know the
// host by another of its addresses. nullopt: `host` is not this machine.
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
  if (const std::optional<std::string> wildcard = own_wildcard(options.join.host)) {
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
  if (const auto reason = base::find_unknown_host(options.join.host, base::kHostPatience)) {
    throw ConfigError("run",
                      describe_unknown_host(rendezvous_options(options), cluster::host_name(), *reason));
  }
}

std::unique_ptr<Membership> join_others(base::EventLoop& loop, const RunOptions& options,
                                        MembershipListener& listener) {
  const JoinOptions& join = options.join;
  if (!join.is_host) return join_open(loop, options, listener);
  if (!*join.is_host) return join_remote(loop, node_info(options), rendezvous_options(options), listener);
  const std::optional<std::string> wildcard = own_wildcard(join.host);
  // Without --local-addr the ranks use this host for their rendezvous too.
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
  if (options.join.kind == JoinOptions::Kind::kAlone) {
    return join_alone(loop, node_info(options), rendezvous_options(options), listener);
  }
  return std::make_unique<MembershipThread>(loop, listener, keeper,
                                            [&](base::EventLoop& own_loop, MembershipListener& own_listener) {
                                              return join_others(own_loop, options, own_listener);
                                            });
}

}  // namespace lockstep::launcher
