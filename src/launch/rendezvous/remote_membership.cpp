#include "launch/rendezvous/remote_membership.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/key_file.h"
#include "launch/rendezvous/describe.h"
#include "launch/rendezvous/fields.h"
#include "launch/rendezvous/job_json.h"
#include "launch/rendezvous/pulse.h"

namespace lockstep::launcher {
namespace {

using Clock = base::EventLoop::Clock;

// Longer than a busy machine keeps a process waiting, and long enough to be why contact was lost.
constexpr std::chrono::milliseconds kLongPause{700};

int64_t wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Different for every membership, also in one process.
std::string make_instance() { return base::to_hex(base::make_nonce()).substr(0, 32); }

NodeInfo checked(NodeInfo node) {
  for (const std::string& name : {node.host, node.address}) {
    if (name.size() > wire::kMaxName || !wire::is_word(name)) {
      throw ConfigError("rendezvous", fmt::format("\"{}\" is neither a host name nor an address", name));
    }
  }
  return node;
}

}  // namespace

RemoteMembership::RemoteMembership(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                                   bool hosts_coordinator, MembershipListener& listener)
    : loop_(loop),
      options_(options),
      token_(options.token),
      candidate_{checked(std::move(node)), make_instance(), hosts_coordinator},
      listener_(listener),
      events_(loop),
      connector_(
          loop, options.host, options.port, [this](base::UniqueFd fd) { connected(std::move(fd)); },
          [this](const std::string& reason) { host_unknown(reason); }) {
  join_timer_ = loop_.after(options_.join_timeout, [this] {
    const double seconds = std::chrono::duration<double>(options_.join_timeout).count();
    finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                      fmt::format("cannot join the job at {} within {} s. Tried {}", endpoint(), seconds,
                                  connector_.tried())));
  });
  connector_.start();
}

RemoteMembership::~RemoteMembership() {
  for (const auto& timer : {join_timer_, handshake_timer_, retry_timer_, look_timer_, lease_timer_}) {
    loop_.cancel(timer);
  }
  if (pulse_socket_) loop_.forget(pulse_socket_.get());
}

std::string RemoteMembership::endpoint() const { return fmt::format("{}:{}", options_.host, options_.port); }

// --- until it has joined

void RemoteMembership::connected(base::UniqueFd fd) {
  coordinator_address_.length = sizeof coordinator_address_.storage;
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&coordinator_address_.storage),
                &coordinator_address_.length);
  if (!find_token()) {
    return unproven(fmt::format(
        "this launcher was given no LOCKSTEP_JOB_TOKEN and no --token-file, and finds no "
        "secret in '{}', where the first launcher of a job without one writes it",
        base::KeyFile(options_.key_names.front(), base::Environment::of_process()).path().string()));
  }
  channel_ = std::make_unique<Channel>(loop_, std::move(fd), kMaxStrangerBytes,
                                       static_cast<Channel::Handler&>(*this));
  stage_ = Stage::kExpectChallenge;
  handshake_timer_ = loop_.after(options_.stranger_timeout, [this] {
    channel_->close();
    connection_failed("connected, but got no answer");
  });
}

bool RemoteMembership::find_token() {
  if (!options_.token.empty() || options_.key_names.empty()) return true;
  // Read anew each time: the coordinator may just have replaced that of an earlier job.
  const std::optional<std::string> token =
      base::KeyFile(options_.key_names.front(), base::Environment::of_process()).read();
  if (token) token_ = base::JobToken(*token);
  return token.has_value();
}

void RemoteMembership::not_of_this_job() {
  channel_->close();
  unproven(
      "the job token is wrong, or a stranger answers there: all launchers of a job must be given the same "
      "LOCKSTEP_JOB_TOKEN or --token-file");
}

void RemoteMembership::unproven(const std::string& reason) {
  const Time now = Clock::now();
  if (!unproven_since_) unproven_since_ = now;
  if (now - *unproven_since_ < options_.unproven_patience) return connection_failed(reason);
  finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                    fmt::format("cannot join the job at {}: {}", endpoint(), reason)));
}

void RemoteMembership::host_unknown(const std::string& reason) {
  finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                    describe_unknown_host(options_, candidate_.node.host, reason)));
}

void RemoteMembership::connection_failed(const std::string& reason) {
  stage_ = Stage::kConnecting;
  loop_.cancel(handshake_timer_);
  // Not from inside the channel, which goes away.
  retry_timer_ = loop_.at(Clock::now(), [this, reason] {
    channel_.reset();
    connector_.try_again(reason);
  });
}

void RemoteMembership::handshake(const wire::Message& message) {
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    // Anybody can say it who has not proven anything.
    if (stage_ != Stage::kExpectJoined) return not_of_this_job();
    return finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                             fmt::format("refused by the job at {}: {}", endpoint(), refused->reason)));
  }
  if (stage_ == Stage::kExpectChallenge) {
    if (const auto* challenge = std::get_if<wire::Challenge>(&message)) return answer_challenge(*challenge);
  } else if (stage_ == Stage::kExpectWelcome) {
    if (const auto* welcome = std::get_if<wire::Welcome>(&message)) return check_welcome(*welcome);
  } else if (const auto* said = std::get_if<wire::Joined>(&message)) {
    return joined(*said);
  }
  throw ProtocolError("the coordinator sent a message out of turn");
}

void RemoteMembership::answer_challenge(const wire::Challenge& challenge) {
  coordinator_nonce_ = challenge.nonce;
  own_nonce_ = base::make_nonce();
  stage_ = Stage::kExpectWelcome;
  channel_->send(
      wire::Hello{own_nonce_, token_.prove(base::JobToken::Side::kMember, coordinator_nonce_, own_nonce_)});
}

void RemoteMembership::check_welcome(const wire::Welcome& welcome) {
  if (!token_.verify(welcome.proof, base::JobToken::Side::kCoordinator, coordinator_nonce_, own_nonce_)) {
    return not_of_this_job();
  }
  channel_->seal(token_.seal(base::JobToken::Side::kMember, coordinator_nonce_, own_nonce_),
                 token_.seal(base::JobToken::Side::kCoordinator, coordinator_nonce_, own_nonce_));
  stage_ = Stage::kExpectJoined;
  channel_->set_max_bytes(kMaxCoordinatorBytes);
  channel_->send(wire::Join{options_.run_id, options_.min_nodes, options_.max_nodes, options_.max_restarts,
                            options_.stall_timeout, candidate_});
}

void RemoteMembership::joined(const wire::Joined& joined) {
  stage_ = Stage::kJoined;
  loop_.cancel(join_timer_);
  loop_.cancel(handshake_timer_);
  heartbeats_.emplace(joined.heartbeat_interval);
  heartbeat_timeout_ = joined.heartbeat_timeout;
  pulse_id_ = joined.pulse_id;
  last_look_ = Clock::now();
  renew_lease(last_look_);
  events_.push([this] { listener_.joined(heartbeat_timeout_); });
  look_after_contact();
}

// --- from then on

void RemoteMembership::received(Channel&, wire::Message message) {
  if (stage_ == Stage::kJoined) {
    const bool is_heartbeat = std::holds_alternative<wire::Heartbeat>(message);
    if (!lease_is_agreed_ && !is_heartbeat && !std::holds_alternative<wire::Over>(message)) {
      held_.push_back(std::move(message));
    } else {
      decided(std::move(message));
    }
  } else if (stage_ != Stage::kFinished) {
    handshake(message);
  }
}

void RemoteMembership::decided(wire::Message message) {
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    heartbeat_answered(beat->sequence, beat->time_us);
  } else if (const auto* reserve = std::get_if<wire::ReservePort>(&message)) {
    events_.push([this, generation = reserve->generation] { reserve_port(generation); });
  } else if (auto* map = std::get_if<wire::Map>(&message)) {
    map_ = std::move(map->generation);
  } else if (const auto* begin = std::get_if<wire::Begin>(&message)) {
    if (!map_ || map_->number != begin->generation ||
        static_cast<size_t>(begin->node_rank) >= map_->nodes.size()) {
      throw ProtocolError("the coordinator started a generation without its map");
    }
    map_->node_rank = begin->node_rank;
    started_ = true;
    const auto generation = std::make_shared<const Generation>(std::move(*map_));
    map_.reset();
    events_.push([this, generation] { listener_.start(*generation); });
  } else if (const auto* halt = std::get_if<wire::Halt>(&message)) {
    events_.push([this, said = *halt] { listener_.stop(said.generation, said.reason); });
  } else if (const auto* note = std::get_if<wire::Note>(&message)) {
    events_.push([this, text = note->text] { listener_.note(text); });
  } else if (auto* stalled = std::get_if<wire::Stalled>(&message)) {
    events_.push([this, said = std::move(*stalled)] { listener_.stalled(said.generation, said.stall); });
  } else if (const auto* over = std::get_if<wire::Over>(&message)) {
    finish(over->outcome);
  } else {
    throw ProtocolError("the coordinator sent a message out of turn");
  }
}

void RemoteMembership::reserve_port(int generation) {
  if (stage_ != Stage::kJoined) return;
  wire::StorePort answer{generation, 0, ""};
  try {
    answer.port = listener_.reserve_store_port(generation);
  } catch (const ConfigError& error) {
    answer.error = error.what();
  }
  send(answer);
}

void RemoteMembership::look_after_contact() {
  const Time now = Clock::now();
  if (now - last_look_ > std::max(kLongPause, heartbeat_timeout_ / 2)) {
    last_absence_ = now - last_look_;
    back_since_ = now;
  }
  last_look_ = now;
  look_timer_ = loop_.after(heartbeats_->look_period(), [this] { look_after_contact(); });
  const Heartbeats::Due due = heartbeats_->due(now);
  if (due == Heartbeats::Due::kRegular) send(wire::Heartbeat{heartbeats_->send(now, due), wall_clock_us()});
  if (due == Heartbeats::Due::kUrgent && pulse_id_ != 0) send_pulse(heartbeats_->send(now, due));
}

void RemoteMembership::send_pulse(int64_t sequence) {
  if (!pulse_socket_) {
    pulse_socket_ = open_pulse_socket(coordinator_address_);
    if (!pulse_socket_) return;
    loop_.watch(pulse_socket_.get(), EPOLLIN, [this](uint32_t) { take_pulses(); });
  }
  const PulseKey key{token_, base::JobToken::Side::kMember, coordinator_nonce_, own_nonce_};
  send_datagram(pulse_socket_.get(), encode_pulse({pulse_id_, sequence}, key), coordinator_address_);
}

void RemoteMembership::take_pulses() {
  const PulseKey key{token_, base::JobToken::Side::kCoordinator, coordinator_nonce_, own_nonce_};
  while (stage_ == Stage::kJoined) {
    const std::optional<Datagram> datagram = receive_datagram(pulse_socket_.get());
    if (!datagram) return;
    const std::optional<Pulse> pulse = read_pulse(datagram->bytes);
    if (!pulse || pulse->member != pulse_id_ || !verify_pulse(datagram->bytes, key)) continue;
    heartbeat_answered(pulse->sequence, std::nullopt);
  }
}

void RemoteMembership::heartbeat_answered(int64_t sequence, std::optional<int64_t> time_us) {
  const Time now = Clock::now();
  const std::optional<Time> sent = heartbeats_->answered(sequence, now);
  if (!sent) return;
  if (time_us) clock_offset_.add(now - *sent, wall_clock_us(), *time_us);
  // From when it was sent, not from now: the coordinator counts from when it came.
  renew_lease(*sent);
  lease_is_agreed_ = true;
  for (wire::Message& message : std::exchange(held_, {})) decided(std::move(message));
}

void RemoteMembership::renew_lease(Time from) {
  loop_.cancel(lease_timer_);
  lease_timer_ = loop_.at(from + heartbeat_timeout_, [this] {
    contact_lost(
        fmt::format("no answer for {} s", std::chrono::duration<double>(heartbeat_timeout_).count()));
  });
}

void RemoteMembership::broken(Channel&, const std::string& reason) {
  if (stage_ == Stage::kJoined) {
    contact_lost(reason);
  } else if (stage_ != Stage::kFinished) {
    connection_failed(reason);
  }
}

RemoteMembership::Duration RemoteMembership::absence() const {
  const Time now = Clock::now();
  if (now - last_look_ > std::max(kLongPause, heartbeat_timeout_ / 2)) return now - last_look_;
  return now - back_since_ < heartbeat_timeout_ ? last_absence_ : Duration(0);
}

void RemoteMembership::contact_lost(const std::string& reason) {
  JobOutcome outcome;
  outcome.kind = started_ ? JobOutcome::Kind::kNodeLost : JobOutcome::Kind::kRendezvousFailed;
  const double away = std::chrono::duration<double>(absence()).count();
  outcome.reason = away == 0 ? fmt::format("lost contact with the job at {}: {}", endpoint(), reason)
                             : fmt::format(
                                   "this launcher did not run for {:.1f} s, it was stopped or its "
                                   "machine was overloaded: the job at {} is lost to it",
                                   away, endpoint());
  if (leaving_ != 0) {
    outcome.kind = JobOutcome::Kind::kStopped;
    outcome.signal = leaving_;
  }
  finish(std::move(outcome));
}

void RemoteMembership::finish(JobOutcome outcome) {
  if (stage_ == Stage::kFinished) return;
  stage_ = Stage::kFinished;
  connector_.stop();
  for (const auto& timer : {join_timer_, handshake_timer_, retry_timer_, look_timer_, lease_timer_}) {
    loop_.cancel(timer);
  }
  if (channel_) channel_->close();
  if (pulse_socket_) loop_.forget(pulse_socket_.get());
  // A process that was stopped finds a start in its socket and its lease run out: those
  // workers must not start.
  events_.clear();
  events_.push([this, outcome = std::move(outcome)] { listener_.finish(outcome); });
}

void RemoteMembership::send(const wire::Message& message) {
  if (stage_ == Stage::kJoined) channel_->send(message);
}

void RemoteMembership::worker_failed(const JobFailure& failure) {
  wire::WorkerFailed told{failure};
  told.failure.time_us = std::max<int64_t>(0, told.failure.time_us + clock_offset_.us());
  send(told);
}
void RemoteMembership::progress(int generation, const std::vector<RankView>& workers) {
  send(wire::Progress{generation, workers});
}
void RemoteMembership::succeeded(int generation) { send(wire::Succeeded{generation}); }
void RemoteMembership::stopped(int generation) { send(wire::Stopped{generation, ""}); }
void RemoteMembership::stuck(int generation, const std::string& reason) {
  send(wire::Stopped{generation, reason});
}

void RemoteMembership::leave(int signal) {
  if (stage_ == Stage::kFinished || leaving_ != 0) return;
  leaving_ = signal;
  if (stage_ == Stage::kJoined) return send(wire::Leave{signal});
  finish(outcome_of(JobOutcome::Kind::kStopped,
                    "stopped by " + signal_name(signal) + " before it had joined the job",
                    /*restart_count=*/0, signal));
}

}  // namespace lockstep::launcher
