#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "launcher/membership.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/heartbeats.h"
#include "launcher/rendezvous/options.h"

namespace lockstep::launcher {

// A place in a job whose coordinator is reached over TCP.
//
// Retries until it has joined, up to join_timeout. From then on the connection is the
// membership: when it breaks, or when the coordinator has not answered for heartbeat_timeout, the
// listener gets finish() and must kill its workers at once; the coordinator relies on that.
class RemoteMembership : public Membership, private Channel::Handler {
 public:
  // hosts_coordinator: the coordinator runs in this process. ConfigError: the node's host or
  // address cannot be sent. The listener outlives the membership and may destroy it in finish().
  RemoteMembership(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                   bool hosts_coordinator, MembershipListener& listener);
  ~RemoteMembership() override;

  void worker_failed(const JobFailure& failure) override;
  void progress(int generation, const std::vector<RankView>& workers) override;
  void succeeded(int generation) override;
  void stopped(int generation) override;
  void stuck(int generation, const std::string& reason) override;
  void leave(int signal) override;

 private:
  enum class Stage { kConnecting, kExpectChallenge, kExpectWelcome, kExpectJoined, kJoined, kFinished };
  using Time = base::EventLoop::Clock::time_point;
  using Duration = base::EventLoop::Clock::duration;

  // Before it has joined.
  void connected(base::UniqueFd fd);
  void connection_failed(const std::string& reason);
  void host_unknown(const std::string& reason);
  void handshake(const wire::Message& message);
  void answer_challenge(const wire::Challenge& challenge);
  void check_welcome(const wire::Welcome& welcome);
  void joined(const wire::Joined& joined);

  // After it has joined.
  void received(Channel& channel, wire::Message message) override;
  void broken(Channel& channel, const std::string& reason) override;
  void handle_decision(wire::Message message);
  void reserve_store_port(int generation);
  void check_contact();
  // False: neither the user nor a key file provides it.
  bool find_token();
  // The answering side has not proven to be of this job.
  void unproven(const std::string& reason);
  void not_of_this_job();
  // How long this process did not run, until now or a moment ago; 0: it ran.
  Duration pause_length() const;
  void send_pulse(int64_t sequence);
  void take_pulses();
  // time_us: the coordinator's clock, if the answer holds it.
  void heartbeat_answered(int64_t sequence, std::optional<int64_t> time_us);
  void renew_lease(Time from);
  void contact_lost(const std::string& reason);
  void send(const wire::Message& message);
  void finish(JobOutcome outcome);
  std::string endpoint() const;

  base::EventLoop& loop_;
  const RendezvousOptions options_;
  base::JobToken token_;
  std::optional<base::KeyFile> key_file_;  // the source of token_ in a job without a given token
  std::optional<Time> unproven_since_;
  const Candidate candidate_;
  MembershipListener& listener_;
  ListenerQueue events_;

  Stage stage_ = Stage::kConnecting;
  Connector connector_;
  std::unique_ptr<Channel> channel_;
  base::Nonce coordinator_nonce_{};
  base::Nonce own_nonce_{};

  std::optional<Generation> map_;
  bool started_ = false;
  int leaving_ = 0;

  std::optional<Heartbeats> heartbeats_;
  Time last_check_;
  Time resumed_at_;  // after the last pause
  Duration last_pause_{0};
  ClockOffset clock_offset_;  // of the coordinator
  SocketAddress coordinator_address_;
  MemberId pulse_id_ = 0;        // 0: the coordinator takes no pulses
  base::UniqueFd pulse_socket_;  // opened for the first pulse
  std::chrono::milliseconds heartbeat_timeout_{0};
  // Until the first answer the two sides do not count the lease from the same moment, so no
  // worker may start: decisions are held back.
  bool lease_is_agreed_ = false;
  std::vector<wire::Message> held_back_;

  base::EventLoop::Timer join_timer_;
  base::EventLoop::Timer handshake_timer_;
  base::EventLoop::Timer retry_timer_;
  base::EventLoop::Timer check_timer_;
  base::EventLoop::Timer lease_timer_;
};

}  // namespace lockstep::launcher
