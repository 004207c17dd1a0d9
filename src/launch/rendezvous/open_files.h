#pragma once

#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// Raises the soft limit of open files where a job of so many nodes needs more.
// ConfigError when the hard limit is too low.
void raise_open_files(const RendezvousOptions& options);

}  // namespace lockstep::launcher
