#include "launcher/rendezvous/remote_membership.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "launcher/job.h"

#include "launcher/rendezvous/heartbeats.h"

namespace lockstep::launcher {
namespace {

using Clock = base::EventLoop::Clock;

// Longer than a busy machine delays a process, and long enough to explain a lost contact.
constexpr std::chrono::milliseconds kLongPause{700};

int64_t wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Different for every membership, also in one process.
std::string make_instance() { return base::to_hex(base::make_nonce()).substr(0, 32); }

NodeInfo checked(NodeInfo node) {
  for (const std::string& name : {node.host, node.address}) {
    if (!wire::is_name(name)) {
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
  if (options_.token.empty() && !options_.key_names.empty()) {
    key_file_.emplace(options_.key_names.front(), base::Environment::of_process());
  }
  join_timer_ = loop_.after(options_.join_timeout, [this] {
    const double seconds = std::chrono::duration<double>(options_.join_timeout).count();
    finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                      fmt::format("cannot join the job at {} within {} s. Tried {}", endpoint(), seconds,
                                  connector_.tried())));
  });
  connector_.start();
}

RemoteMembership::~RemoteMembership() {
  for (const auto& timer : {join_timer_, handshake_timer_, retry_timer_, check_timer_, lease_timer_}) {
    loop_.cancel(timer);
  }
  if (pulse_socket_) loop_.forget(pulse_socket_.get());
}

std::string RemoteMembership::endpoint() const { return fmt::format("{}:{}", options_.host, options_.port); }

// --- before it has joined ---

void RemoteMembership::connected(base::UniqueFd fd) {
  coordinator_address_.length = sizeof coordinator_address_.storage;
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&coordinator_address_.storage),
                &coordinator_address_.length);
  if (!find_token()) {
    return unproven(
        fmt::format("this launcher was given no LOCKSTEP_JOB_TOKEN and no --token-file, and finds no "
                    "secret in '{}', where the first launcher of a job without one writes it",
                    key_file_->path().string()));
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
  if (!key_file_) return true;
  // Read for each attempt: the coordinator may just have replaced the file of an earlier job.
  const std::optional<std::string> token = key_file_->read();
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
  // Not from inside the channel, which this destroys.
  retry_timer_ = loop_.at(Clock::now(), [this, reason] {
    channel_.reset();
    connector_.try_again(reason);
  });
}

void RemoteMembership::handshake(const wire::Message& message) {
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    // A peer without a proof can send it too.
    if (stage_ != Stage::kExpectJoined) return not_of_this_job();
    return finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                             fmt::format("refused by the job at {}: {}", endpoint(), refused->reason)));
  }
  if (stage_ == Stage::kExpectChallenge) {
    if (const auto* challenge = std::get_if<wire::Challenge>(&message)) return answer_challenge(*challenge);
  } else if (stage_ == Stage::kExpectWelcome) {
    if (const auto* welcome = std::get_if<wire::Welcome>(&message)) return check_welcome(*welcome);
  } else if (const auto* accepted = std::get_if<wire::Joined>(&message)) {
    return joined(*accepted);
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
  last_check_ = Clock::now();
  renew_lease(last_check_);
  events_.push([this] { listener_.joined(heartbeat_timeout_); });
  check_contact();
}

// --- after it has joined ---

void RemoteMembership::received(Channel&, wire::Message message) {
  if (stage_ == Stage::kJoined) {
    const bool is_heartbeat = std::holds_alternative<wire::Heartbeat>(message);
    if (!lease_is_agreed_ && !is_heartbeat && !std::holds_alternative<wire::Finish>(message)) {
      held_back_.push_back(std::move(message));
    } else {
      handle_decision(std::move(message));
    }
  } else if (stage_ != Stage::kFinished) {
    handshake(message);
  }
}

void RemoteMembership::handle_decision(wire::Message message) {
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    heartbeat_answered(beat->sequence, beat->time_us);
  } else if (const auto* reserve = std::get_if<wire::ReserveStorePort>(&message)) {
    events_.push([this, generation = reserve->generation] { reserve_store_port(generation); });
  } else if (auto* map = std::get_if<wire::GenerationMap>(&message)) {
    map_ = std::move(map->generation);
  } else if (const auto* start = std::get_if<wire::Start>(&message)) {
    if (!map_ || map_->number != start->generation ||
        static_cast<size_t>(start->node_rank) >= map_->nodes.size()) {
      throw ProtocolError("the coordinator started a generation without its map");
    }
    map_->node_rank = start->node_rank;
    started_ = true;
    const auto generation = std::make_shared<const Generation>(std::move(*map_));
    map_.reset();
    events_.push([this, generation] { listener_.start(*generation); });
  } else if (const auto* stop = std::get_if<wire::Stop>(&message)) {
    events_.push([this, stop = *stop] { listener_.stop(stop.generation, stop.reason); });
  } else if (const auto* note = std::get_if<wire::Note>(&message)) {
    events_.push([this, text = note->text] { listener_.note(text); });
  } else if (auto* stalled = std::get_if<wire::Stalled>(&message)) {
    events_.push(
        [this, stalled = std::move(*stalled)] { listener_.stalled(stalled.generation, stalled.stall); });
  } else if (const auto* end = std::get_if<wire::Finish>(&message)) {
    finish(end->outcome);
  } else {
    throw ProtocolError("the coordinator sent a message out of turn");
  }
}

void RemoteMembership::reserve_store_port(int generation) {
  if (stage_ != Stage::kJoined) return;
  wire::StorePort answer{generation, 0, ""};
  try {
    answer.port = listener_.reserve_store_port(generation);
  } catch (const ConfigError& error) {
    answer.error = error.what();
  }
  send(answer);
}

void RemoteMembership::check_contact() {
  const Time now = Clock::now();
  if (now - last_check_ > std::max(kLongPause, heartbeat_timeout_ / 2)) {
    last_pause_ = now - last_check_;
    resumed_at_ = now;
  }
  last_check_ = now;
  check_timer_ = loop_.after(heartbeats_->look_period(), [this] { check_contact(); });
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
  // From the moment it was sent, not from now: the coordinator counts from its arrival there.
  renew_lease(*sent);
  lease_is_agreed_ = true;
  for (wire::Message& message : std::exchange(held_back_, {})) handle_decision(std::move(message));
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

RemoteMembership::Duration RemoteMembership::pause_length() const {
  const Time now = Clock::now();
  if (now - last_check_ > std::max(kLongPause, heartbeat_timeout_ / 2)) return now - last_check_;
  return now - resumed_at_ < heartbeat_timeout_ ? last_pause_ : Duration(0);
}

void RemoteMembership::contact_lost(const std::string& reason) {
  JobOutcome outcome;
  outcome.kind = started_ ? JobOutcome::Kind::kNodeLost : JobOutcome::Kind::kRendezvousFailed;
  const double paused = std::chrono::duration<double>(pause_length()).count();
  outcome.reason = paused == 0 ? fmt::format("lost contact with the job at {}: {}", endpoint(), reason)
                               : fmt::format(
                                     "this launcher did not run for {:.1f} s, it was stopped or its "
                                     "machine was overloaded: it lost contact with the job at {}",
                                     paused, endpoint());
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
  for (const auto& timer : {join_timer_, handshake_timer_, retry_timer_, check_timer_, lease_timer_}) {
    loop_.cancel(timer);
  }
  if (channel_) channel_->close();
  if (pulse_socket_) loop_.forget(pulse_socket_.get());
  // A process that was paused may find a start in its socket after its lease has ended: those
  // workers must not start.
  events_.clear();
  events_.push([this, outcome = std::move(outcome)] { listener_.finish(outcome); });
}

void RemoteMembership::send(const wire::Message& message) {
  if (stage_ == Stage::kJoined) channel_->send(message);
}

void RemoteMembership::worker_failed(const JobFailure& failure) {
  wire::WorkerFailed report{failure};
  report.failure.time_us = std::max<int64_t>(0, report.failure.time_us + clock_offset_.us());
  send(report);
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
