#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "launch/membership.h"
#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// How a launcher gets its place in a job. In all of these the listener is called from
// the loop only, outlives the membership, and may destroy it in finish().

// A job of one node. No sockets.
std::unique_ptr<Membership> join_alone(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                                       MembershipListener& listener);

// One node's part of a job whose whole map is known to each of them, and which ends there
// for itself. Without a master_port in it one is reserved here. No sockets.
std::unique_ptr<Membership> join_known(base::EventLoop& loop, const Generation& map,
                                       const RendezvousOptions& options, MembershipListener& listener);

// A job whose coordinator is at options.host, options.port. ConfigError: a name that
// cannot be one. Everything else that fails comes by finish(), with kRendezvousFailed.
std::unique_ptr<Membership> join_remote(base::EventLoop& loop, const NodeInfo& node,
                                        const RendezvousOptions& options, MembershipListener& listener);

struct HostedJob {
  std::unique_ptr<Membership> membership;
  uint16_t port = 0;  // where the coordinator listens
};

// Hosts the coordinator and joins it. listen_address: numeric, "::" or "0.0.0.0" for
// all. A node without an address is reached at options.host, where the others find the
// coordinator too. finish() comes when the others know the outcome, or two
// heartbeat_timeouts later. ConfigError: the port is in use, the address is not ours.
HostedJob host_job(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                   const std::string& listen_address, MembershipListener& listener);

}  // namespace lockstep::launcher
