#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "launcher/membership.h"
#include "launcher/rendezvous/options.h"

namespace lockstep::launcher {

// How a launcher gets its place in a job. In all of these the listener is called from the loop
// only, outlives the membership, and may destroy it in finish().

// A job of one node. No sockets.
std::unique_ptr<Membership> join_alone(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                                       MembershipListener& listener);

// One node's part of a job whose whole map every node knows in advance. This node restarts and
// ends its own part; it does not contact the others. A master_port that the map lacks is
// reserved here. No sockets.
std::unique_ptr<Membership> join_known(base::EventLoop& loop, const Generation& map,
                                       const RendezvousOptions& options, MembershipListener& listener);

// A job whose coordinator is at options.host, options.port. ConfigError: the node's host or
// address cannot be one. Every other failure is reported by finish() with kRendezvousFailed.
std::unique_ptr<Membership> join_remote(base::EventLoop& loop, const NodeInfo& node,
                                        const RendezvousOptions& options, MembershipListener& listener);

struct HostedJob {
  std::unique_ptr<Membership> membership;
  uint16_t port = 0;  // where the coordinator listens
};

// Hosts the coordinator and joins it. listen_address: numeric, "::" or "0.0.0.0" for all. A node
// without an address is reached at options.host, like the coordinator. finish() is called when
// the others have the outcome, at most two heartbeat_timeouts late. ConfigError: the port is in
// use, or the address is not this machine's.
HostedJob host_job(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                   const std::string& listen_address, MembershipListener& listener);

}  // namespace lockstep::launcher
