#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "base/job_token.h"
#include "base/unique_fd.h"
#include "launcher/rendezvous/connection.h"
#include "launcher/rendezvous/roster.h"

namespace lockstep::launcher {

// When a member sends which heartbeat, and what follows from the answers. Without clock and
// socket: the caller passes the time.
//
// One regular heartbeat per interval. While the oldest unanswered one waits for more than twice
// the usual round trip, urgent ones follow soon, as pulses.
class Heartbeats {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit Heartbeats(Duration interval) : interval_(interval), round_trip_(interval / kLooks) {}

  // How often the caller has to call due().
  Duration look_period() const { return interval_ / kLooks; }
  enum class Due { kNone, kRegular, kUrgent };
  Due due(Time now) const;
  // Records a heartbeat that is sent now; returns its sequence number.
  int64_t send(Time now, Due kind);
  // When the answered heartbeat was sent. nullopt: no such heartbeat waits for an answer.
  std::optional<Time> answered(int64_t sequence, Time now);

 private:
  static constexpr int kLooks = 5;

  struct Sent {
    int64_t sequence;
    Time when;
  };

  const Duration interval_;
  std::deque<Sent> unanswered_;
  Time last_regular_;
  Duration round_trip_;  // an average of the recent ones
  int64_t next_ = 0;
};

// An urgent heartbeat, or its answer, in one datagram. TCP sends a lost packet again only after
// 0.2 s and more, and all later bytes wait for it: too long for a lease of 1.5 s. Where a
// firewall drops datagrams, TCP alone has to do.
struct Pulse {
  MemberId member = 0;  // the pulse_id of its Joined
  int64_t sequence = 0;
};

// Authenticates a pulse by the token and both nonces of the member's connection, so that no
// other process can keep the member alive or answer for the coordinator.
struct PulseKey {
  const base::JobToken& token;
  base::JobToken::Side side;  // of the sender
  const base::Nonce& coordinator;
  const base::Nonce& member;
};
std::string encode_pulse(const Pulse& pulse, const PulseKey& key);
// nullopt: not a pulse. Unverified: the member's id is needed to find the key.
std::optional<Pulse> read_pulse(std::string_view datagram);
// REQUIRES: read_pulse() has read it.
bool verify_pulse(std::string_view datagram, const PulseKey& key);

// A datagram socket at the port where `listener` listens; empty if that is impossible.
base::UniqueFd open_pulse_socket(int listener);
// A datagram socket at any port, of the family of this address.
base::UniqueFd open_pulse_socket(const SocketAddress& peer);

// The next datagram, without blocking; nullopt: there is none, or an error.
struct Datagram {
  std::string bytes;
  SocketAddress from;
};
std::optional<Datagram> receive_datagram(int fd);
void send_datagram(int fd, const std::string& bytes, const SocketAddress& to);

// How far the clock of another machine is ahead of ours, estimated from heartbeats that it
// answered with its time. An estimate is wrong by at most half a round trip, so the quickest of
// the recent answers counts.
class ClockOffset {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Adds an answer that arrives now. Both times are microseconds since the epoch: ours now, and
  // the peer's when it answered.
  void add(Duration round_trip, int64_t ours_us, int64_t peer_us) {
    const int64_t half_us = std::chrono::duration_cast<std::chrono::microseconds>(round_trip / 2).count();
    recent_.push_back({round_trip, peer_us - (ours_us - half_us)});
    if (recent_.size() > kRecent) recent_.pop_front();
  }

  // The number to add to our time to get the peer's; 0 before the first answer.
  int64_t us() const {
    const auto quickest =
        std::min_element(recent_.begin(), recent_.end(),
                         [](const Sample& a, const Sample& b) { return a.round_trip < b.round_trip; });
    return quickest == recent_.end() ? 0 : quickest->offset_us;
  }

 private:
  static constexpr size_t kRecent = 32;
  struct Sample {
    Duration round_trip;
    int64_t offset_us;
  };
  std::deque<Sample> recent_;
};

}  // namespace lockstep::launcher
