#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "launch/membership.h"
#include "launch/rendezvous/channel.h"
#include "launch/rendezvous/clock_offset.h"
#include "launch/rendezvous/connector.h"
#include "launch/rendezvous/heartbeats.h"
#include "launch/rendezvous/listener_queue.h"
#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// A place in a job whose coordinator is reached over TCP.
//
// Until it has joined it goes on trying, up to join_timeout. From then on the
// connection is the membership: when it breaks, or when the coordinator has not
// answered for heartbeat_timeout, the listener gets finish() and is to kill its
// workers at once; the coordinator counts on it.
class RemoteMembership : public Membership, private Channel::Handler {
 public:
  // hosts_coordinator: the coordinator lives in this process. ConfigError where the
  // node's host or address cannot be sent. The listener outlives the membership and
  // may destroy it in finish().
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

  // Until it has joined.
  void connected(base::UniqueFd fd);
  void connection_failed(const std::string& reason);
  void host_unknown(const std::string& reason);
  void handshake(const wire::Message& message);
  void answer_challenge(const wire::Challenge& challenge);
  void check_welcome(const wire::Welcome& welcome);
  void joined(const wire::Joined& joined);

  // From then on.
  void received(Channel& channel, wire::Message message) override;
  void broken(Channel& channel, const std::string& reason) override;
  void decided(wire::Message message);
  void reserve_port(int generation);
  void look_after_contact();
  // False: nobody has given it to this launcher, or written it down.
  bool find_token();
  // Whoever answers has not proven to be of this job.
  void unproven(const std::string& reason);
  void not_of_this_job();
  // How long this process did not run, up to now or until a moment ago; 0: it did.
  Duration absence() const;
  void send_pulse(int64_t sequence);
  void take_pulses();
  // time_us: the coordinator's clock, where it was told.
  void heartbeat_answered(int64_t sequence, std::optional<int64_t> time_us);
  void renew_lease(Time from);
  void contact_lost(const std::string& reason);
  void send(const wire::Message& message);
  void finish(JobOutcome outcome);
  std::string endpoint() const;

  base::EventLoop& loop_;
  const RendezvousOptions options_;
  base::JobToken token_;
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
  Time last_look_;
  Time back_since_;  // from the last absence
  Duration last_absence_{0};
  ClockOffset clock_offset_;  // of the coordinator
  SocketAddress coordinator_address_;
  MemberId pulse_id_ = 0;        // 0: the coordinator takes none
  base::UniqueFd pulse_socket_;  // opened for the first one
  std::chrono::milliseconds heartbeat_timeout_{0};
  // Until the first answer the two sides do not count the lease from the same moment,
  // so that no worker may start.
  bool lease_is_agreed_ = false;
  std::vector<wire::Message> held_;

  base::EventLoop::Timer join_timer_;
  base::EventLoop::Timer handshake_timer_;
  base::EventLoop::Timer retry_timer_;
  base::EventLoop::Timer look_timer_;
  base::EventLoop::Timer lease_timer_;
};

}  // namespace lockstep::launcher
