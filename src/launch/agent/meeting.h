#pragma once

#include <memory>

#include "base/event_loop.h"
#include "launch/agent/keeper.h"
#include "launch/agent/run_options.h"
#include "launch/membership.h"

namespace lockstep::launcher {

// Takes this launcher's place in the job: alone, as the host of the others, or as one
// that goes to the host. In an open meeting the host is whoever has the endpoint's
// address and gets its port first. ConfigError: the port of a host that was given is
// taken; what fails later comes through the listener. With several nodes the membership lives
// on a thread of its own (membership_thread.h), which renews the keeper's lease.
std::unique_ptr<Membership> join_job(base::EventLoop& loop, const RunOptions& options,
                                     MembershipListener& listener, Keeper& keeper);

}  // namespace lockstep::launcher
