#include "launcher/rendezvous/coordinator_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "cluster/node_resources.h"
#include "launcher/rendezvous/heartbeats.h"
#include "launcher/rendezvous/message.h"
#include "launcher/rendezvous/open_files.h"
#include "launcher/rendezvous/options.h"

namespace lockstep::launcher {

namespace {

std::string nodes_flag(int min, int max) {
  return min == max ? std::to_string(min) : fmt::format("{}:{}", min, max);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{}", std::chrono::duration<double>(time).count());
}

// A sentence with both hosts and both values if a launcher that wants to join was started with
// other flags for the whole job than the one that hosts it; "": they agree. Without this check
// the host's flags would silently apply.
std::string difference_of(const wire::Join& join, const RendezvousOptions& options) {
  const auto differ = [&](const char* flag, const std::string& theirs, const std::string& ours) {
    return fmt::format("{} is {} on {} and {} on {}, which hosts the job: give all launchers the same", flag,
                       theirs, join.candidate.node.host, ours, cluster::host_name());
  };
  if (join.min_nodes != options.min_nodes || join.max_nodes != options.max_nodes) {
    return differ("--nnodes", nodes_flag(join.min_nodes, join.max_nodes),
                  nodes_flag(options.min_nodes, options.max_nodes));
  }
  if (join.max_restarts != options.max_restarts) {
    return differ("--max-restarts", std::to_string(join.max_restarts), std::to_string(options.max_restarts));
  }
  if (join.stall_timeout != options.stall_timeout) {
    return differ("--stall-timeout", seconds_text(join.stall_timeout), seconds_text(options.stall_timeout));
  }
  return "";
}

using std::chrono::milliseconds;
using Clock = base::EventLoop::Clock;

constexpr int kAcceptsAtOnce = 64;
constexpr int kPulsesAtOnce = 256;
constexpr milliseconds kAcceptPause{50};
constexpr int kMaxRefusalsLogged = 10;

// Numeric; an IPv4 address that came over an IPv6 socket is shown as IPv4.
std::string address_of(const sockaddr_storage& storage) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  } else if (const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
             IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

int64_t wall_clock_us(Clock::time_point when) {
  const auto age = Clock::now() - when;
  const auto time = std::chrono::system_clock::now() - age;
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

struct CoordinatorServer::Peer : Channel::Handler {
  enum class Stage { kStranger, kProven, kMember, kFinished };

  Peer(CoordinatorServer& the_server, MemberId the_id, base::UniqueFd fd, std::string the_address)
      : server(the_server),
        id(the_id),
        address(std::move(the_address)),
        channel(the_server.loop_, std::move(fd), kMaxStrangerBytes, *this) {}

  void received(Channel&, wire::Message message) override { server.received(*this, message); }
  void broken(Channel&, const std::string& reason) override { server.broken(*this, reason); }

  CoordinatorServer& server;
  const MemberId id;
  const std::string address;
  const base::Nonce nonce = base::make_nonce();  // ours, for this peer
  base::Nonce its_nonce{};
  int64_t last_pulse = -1;
  Stage stage = Stage::kStranger;
  bool is_host = false;
  Time since = Clock::now();  // in this stage
  Time last_heartbeat;
  Channel channel;
};

CoordinatorServer::CoordinatorServer(base::EventLoop& loop, base::ListenSocket listener,
                                     const RendezvousOptions& options, bool needs_host)
    : loop_(loop),
      listener_(std::move(listener)),
      pulse_socket_(open_pulse_socket(listener_.fd.get())),
      options_(options),
      token_(options.token),
      coordinator_(options, needs_host, Clock::now()) {
  raise_open_files(options_);
  prepare_socket(listener_.fd.get());
  loop_.watch(listener_.fd.get(), EPOLLIN, [this](uint32_t) { accept_some(); });
  if (pulse_socket_) loop_.watch(pulse_socket_.get(), EPOLLIN, [this](uint32_t) { take_pulses(); });
  schedule_peer_check();
  schedule_deadline();
}

CoordinatorServer::~CoordinatorServer() {
  for (const auto& timer : {peer_check_timer_, deadline_timer_, accept_timer_, cleanup_timer_})
    loop_.cancel(timer);
  loop_.forget(listener_.fd.get());
  if (pulse_socket_) loop_.forget(pulse_socket_.get());
}

// --- connections ---

void CoordinatorServer::accept_some() {
  const int limit = max_strangers_now(options_, static_cast<int>(strangers_.size()));
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (!make_room_for_stranger(limit)) return pause_accepting();
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    base::UniqueFd fd(::accept4(listener_.fd.get(), reinterpret_cast<sockaddr*>(&storage), &length,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      accept_one(std::move(fd), address_of(storage));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      drop_oldest_stranger();
      pause_accepting();
      return;
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void CoordinatorServer::pause_accepting() {
  loop_.change(listener_.fd.get(), 0);
  accept_timer_ = loop_.after(kAcceptPause, [this] { loop_.change(listener_.fd.get(), EPOLLIN); });
}

void CoordinatorServer::accept_one(base::UniqueFd fd, std::string address) {
  const MemberId id = next_id_++;
  const auto [added, is_new] =
      peers_.emplace(id, std::make_unique<Peer>(*this, id, std::move(fd), std::move(address)));
  strangers_.insert(id);
  Peer& peer = *added->second;
  peer.channel.send(wire::Challenge{peer.nonce});
}

bool CoordinatorServer::make_room_for_stranger(int limit) {
  if (static_cast<int>(strangers_.size()) < limit) return true;
  // A launcher of this job proves itself in milliseconds, so the oldest stranger is none;
  // unless very many connect at once, which then wait in the kernel's queue.
  const Peer& oldest = *peers_.at(*strangers_.begin());
  if (Clock::now() - oldest.since < options_.stranger_timeout / 10) return false;
  drop_oldest_stranger();
  return true;
}

void CoordinatorServer::drop_oldest_stranger() {
  if (!strangers_.empty()) drop(*strangers_.begin());
}

// Often called from inside the peer's own channel, so the peer is destroyed later, from the loop.
void CoordinatorServer::drop(MemberId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  found->second->channel.close();
  dropped_.push_back(std::move(found->second));
  peers_.erase(found);
  strangers_.erase(id);
  leaving_.erase(id);
  if (dropped_.size() == 1) cleanup_timer_ = loop_.at(Clock::now(), [this] { dropped_.clear(); });
  let_host_finish();
}

void CoordinatorServer::refuse(Peer& peer, const std::string& reason) {
  if (++refusals_logged_ <= kMaxRefusalsLogged) {
    base::log_warning("rendezvous", "refused {}: {}{}", peer.address, reason,
                      refusals_logged_ == kMaxRefusalsLogged ? " (no more of these are shown)" : "");
  }
  peer.channel.send(wire::Refused{reason});
  drop(peer.id);
}

// --- messages ---

void CoordinatorServer::received(Peer& peer, const wire::Message& message) {
  switch (peer.stage) {
    case Peer::Stage::kStranger:
      if (const auto* said = std::get_if<wire::Hello>(&message)) return hello(peer, *said);
      break;
    case Peer::Stage::kProven:
      if (const auto* said = std::get_if<wire::Join>(&message)) return join(peer, *said);
      break;
    case Peer::Stage::kMember: return from_member(peer, message);
    case Peer::Stage::kFinished: return;
  }
  throw ProtocolError("a message out of turn");
}

void CoordinatorServer::hello(Peer& peer, const wire::Hello& hello) {
  if (!token_.verify(hello.proof, base::JobToken::Side::kMember, peer.nonce, hello.nonce)) {
    return refuse(peer, "the job token is wrong: all launchers of a job must be given the same one");
  }
  peer.stage = Peer::Stage::kProven;
  peer.its_nonce = hello.nonce;
  peer.channel.set_max_bytes(kMaxMemberBytes);
  peer.channel.send(wire::Welcome{token_.prove(base::JobToken::Side::kCoordinator, peer.nonce, hello.nonce)});
  peer.channel.seal(token_.seal(base::JobToken::Side::kCoordinator, peer.nonce, hello.nonce),
                    token_.seal(base::JobToken::Side::kMember, peer.nonce, hello.nonce));
}

void CoordinatorServer::join(Peer& peer, const wire::Join& join) {
  if (join.run_id != options_.run_id) {
    return refuse(peer, fmt::format("the job here is \"{}\", the launcher belongs to \"{}\"", options_.run_id,
                                    join.run_id));
  }
  if (const std::string difference = difference_of(join, options_); !difference.empty()) {
    return refuse(peer, difference);
  }
  strangers_.erase(peer.id);
  peer.stage = Peer::Stage::kMember;
  peer.since = peer.last_heartbeat = Clock::now();
  peer.is_host = join.candidate.hosts_coordinator;
  Candidate candidate = join.candidate;
  if (candidate.node.address.empty()) candidate.node.address = peer.address;
  coordinator_.join(peer.since, peer.id, candidate);
  perform_actions();
}

void CoordinatorServer::from_member(Peer& peer, const wire::Message& message) {
  const Time now = Clock::now();
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    peer.last_heartbeat = now;
    peer.channel.send(wire::Heartbeat{beat->sequence, wall_clock_us(now)});
    return;
  }
  if (const auto* port = std::get_if<wire::StorePort>(&message)) {
    coordinator_.store_port(now, peer.id, port->generation, port->port, port->error);
  } else if (const auto* failed = std::get_if<wire::WorkerFailed>(&message)) {
    coordinator_.worker_failed(now, peer.id, failed->failure);
  } else if (const auto* progress = std::get_if<wire::Progress>(&message)) {
    coordinator_.progress(now, peer.id, progress->generation, progress->workers);
  } else if (const auto* succeeded = std::get_if<wire::Succeeded>(&message)) {
    coordinator_.succeeded(now, peer.id, succeeded->generation);
  } else if (const auto* stopped = std::get_if<wire::Stopped>(&message)) {
    if (stopped->stuck.empty()) {
      coordinator_.stopped(now, peer.id, stopped->generation);
    } else {
      coordinator_.stuck(now, peer.id, stopped->generation,
                         {stopped->stuck, wall_clock_us(now), now + options_.lease_margin});
    }
  } else if (const auto* leave = std::get_if<wire::Leave>(&message)) {
    coordinator_.leave(now, peer.id, leave->signal);
  } else {
    throw ProtocolError("a message out of turn");
  }
  perform_actions();
}

// Pulses count as heartbeats. Each is valid once: a replayed one cannot keep a dead member alive.
void CoordinatorServer::take_pulses() {
  for (int i = 0; i < kPulsesAtOnce; ++i) {
    const std::optional<Datagram> datagram = receive_datagram(pulse_socket_.get());
    if (!datagram) return;
    const std::optional<Pulse> pulse = read_pulse(datagram->bytes);
    Peer* peer = pulse ? find(pulse->member) : nullptr;
    const bool known = peer != nullptr && peer->stage >= Peer::Stage::kMember;
    if (!known || pulse->sequence <= peer->last_pulse) continue;
    const PulseKey its_key{token_, base::JobToken::Side::kMember, peer->nonce, peer->its_nonce};
    if (!verify_pulse(datagram->bytes, its_key)) continue;
    peer->last_pulse = pulse->sequence;
    peer->last_heartbeat = Clock::now();
    const PulseKey our_key{token_, base::JobToken::Side::kCoordinator, peer->nonce, peer->its_nonce};
    send_datagram(pulse_socket_.get(), encode_pulse(*pulse, our_key), datagram->from);
  }
}

void CoordinatorServer::broken(Peer& peer, const std::string& reason) {
  if (peer.stage == Peer::Stage::kMember) {
    lose(peer, reason, Clock::now());
  } else {
    drop(peer.id);
  }
}

void CoordinatorServer::lose(Peer& peer, const std::string& reason, Time when) {
  const MemberId id = peer.id;
  const Coordinator::Loss loss{reason, wall_clock_us(when),
                               peer.last_heartbeat + options_.heartbeat_timeout + options_.lease_margin};
  drop(id);
  coordinator_.lost(Clock::now(), id, loss);
  perform_actions();
}

// --- decisions ---

void CoordinatorServer::perform_actions() {
  for (const Action& action : coordinator_.take_actions()) {
    std::visit([this](const auto& a) { perform(a); }, action);
  }
  let_host_finish();
  schedule_deadline();
}

CoordinatorServer::Peer* CoordinatorServer::find(MemberId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

void CoordinatorServer::perform(const Refused& action) {
  if (Peer* peer = find(action.to)) refuse(*peer, action.reason);
}

void CoordinatorServer::perform(const Joined& action) {
  if (Peer* peer = find(action.to)) {
    peer->channel.send(
        wire::Joined{options_.heartbeat_interval, options_.heartbeat_timeout, pulse_socket_ ? peer->id : 0});
  }
}

void CoordinatorServer::perform(const ReserveStorePort& action) {
  if (Peer* peer = find(action.to)) peer->channel.send(wire::ReserveStorePort{action.generation});
}

void CoordinatorServer::perform(const Start& action) {
  if (encoded_generation_ != action.generation) {
    encoded_generation_ = action.generation;
    encoded_map_ = std::make_shared<const std::string>(wire::encode(wire::GenerationMap{*action.generation}));
  }
  if (Peer* peer = find(action.to)) {
    peer->channel.send(encoded_map_);
    peer->channel.send(wire::Start{action.generation->number, action.node_rank});
  }
}

void CoordinatorServer::perform(const Stop& action) {
  if (Peer* peer = find(action.to)) peer->channel.send(wire::Stop{action.generation, action.reason});
}

void CoordinatorServer::perform(const Note& action) {
  if (Peer* peer = find(action.to)) peer->channel.send(wire::Note{action.text});
}

void CoordinatorServer::perform(const Stalled& action) {
  if (Peer* peer = find(action.to)) peer->channel.send(wire::Stalled{action.generation, *action.stall});
}

void CoordinatorServer::perform(const Finish& action) {
  Peer* peer = find(action.to);
  if (peer == nullptr) return;
  if (peer->is_host && !finish_of_host_) {
    finish_of_host_ = action;
    return;
  }
  peer->channel.send(wire::Finish{action.outcome});
  peer->stage = Peer::Stage::kFinished;
  peer->since = Clock::now();
  leaving_.insert(peer->id);
}

void CoordinatorServer::let_host_finish() {
  if (!finish_of_host_ || !leaving_.empty()) return;
  if (Peer* host = find(finish_of_host_->to)) {
    host->channel.send(wire::Finish{finish_of_host_->outcome});
    host->stage = Peer::Stage::kFinished;
    host->since = Clock::now();
  }
  finish_of_host_.reset();
}

// --- time ---

void CoordinatorServer::schedule_peer_check() {
  next_peer_check_ = Clock::now() + options_.heartbeat_interval / 5;
  peer_check_timer_ = loop_.at(next_peer_check_, [this] { check_peers(); });
}

void CoordinatorServer::check_peers() {
  const Time now = Clock::now();
  // If this process itself did not run for a while, the heartbeats that came meanwhile are read
  // first.
  const bool was_paused = now - next_peer_check_ > options_.heartbeat_interval / 2;
  std::vector<MemberId> silent, late;
  for (const auto& [id, peer] : peers_) {
    if (peer->stage == Peer::Stage::kMember) {
      if (now - peer->last_heartbeat > options_.heartbeat_timeout && !was_paused) silent.push_back(id);
    } else {
      // On a bad link the outcome needs more time; pulses keep the member connected.
      const milliseconds limit =
          peer->stage == Peer::Stage::kFinished ? 2 * options_.heartbeat_timeout : options_.stranger_timeout;
      if (now - peer->since > limit) late.push_back(id);
    }
  }
  for (const MemberId id : late) drop(id);
  for (const MemberId id : silent) {
    Peer* peer = find(id);
    if (peer == nullptr) continue;
    const double seconds = std::chrono::duration<double>(now - peer->last_heartbeat).count();
    lose(*peer, fmt::format("no sign of life for {:.1f} s", seconds), peer->last_heartbeat);
  }
  schedule_peer_check();
}

void CoordinatorServer::schedule_deadline() {
  loop_.cancel(deadline_timer_);
  const std::optional<Time> deadline = coordinator_.deadline();
  if (!deadline) return;
  deadline_timer_ = loop_.at(*deadline, [this] {
    const Time now = Clock::now();
    coordinator_.tick(now, wall_clock_us(now));
    perform_actions();
  });
}

}  // namespace lockstep::launcher
