#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/job_token.h"
#include "base/unique_fd.h"
#include "launch/rendezvous/connector.h"
#include "launch/rendezvous/roster.h"

namespace lockstep::launcher {

// An urgent heartbeat, or its answer, in one datagram: where packets are lost, TCP sends
// them again after 0.2 s and more and keeps all that follows waiting for them, too long
// for a lease of 1.5 s. Whoever cannot get datagrams through lives by TCP alone.
struct Pulse {
  MemberId member = 0;  // as the coordinator told it when it joined
  int64_t sequence = 0;
};

// Proven by the token and both nonces of the member's connection, so that nobody else
// can keep it alive or answer for the coordinator.
struct PulseKey {
  const base::JobToken& token;
  base::JobToken::Side side;  // of the one who sends
  const base::Nonce& coordinator;
  const base::Nonce& member;
};
std::string encode_pulse(const Pulse& pulse, const PulseKey& key);
// nullopt: no pulse. Whose it is has to be known before it can be verified.
std::optional<Pulse> read_pulse(std::string_view datagram);
// REQUIRES: read_pulse() has read it.
bool verify_pulse(std::string_view datagram, const PulseKey& key);

// Datagrams at the port where this socket listens; an empty one where that is
// impossible.
base::UniqueFd open_pulse_socket(int listener);
// Any port, of the family of this address.
base::UniqueFd open_pulse_socket(const SocketAddress& peer);

// What has come, without blocking; nullopt: nothing, or something else than datagrams.
struct Datagram {
  std::string bytes;
  SocketAddress from;
};
std::optional<Datagram> receive_datagram(int fd);
void send_datagram(int fd, const std::string& bytes, const SocketAddress& to);

}  // namespace lockstep::launcher
