#pragma once

#include <string>

#include "launch/rendezvous/message.h"
#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// Where a launcher was told something else of the job than this one, which hosts it:
// the host would decide, and the other's user wonder. A sentence with both hosts and
// both values; "": they agree.
std::string difference_of(const wire::Join& join, const RendezvousOptions& options);

}  // namespace lockstep::launcher
