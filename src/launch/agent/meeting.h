#pragma once

#include <memory>

#include "base/event_loop.h"
#include "launch/agent/run_options.h"
#include "launch/membership.h"

namespace lockstep::launcher {

// Takes this launcher's place in the job: alone, as the host of the others, or as one
// that goes to the host. In an open meeting the host is whoever has the endpoint's
// address and gets its port first. ConfigError: the port of a host that was given is
// taken; what fails later comes through the listener.
std::unique_ptr<Membership> join_job(base::EventLoop& loop, const RunOptions& options,
                                     MembershipListener& listener);

}  // namespace lockstep::launcher
