#pragma once

#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// Raises the soft limit of open files of a launcher: connections, workers and logs all count.
void raise_open_files();
// The same, and further where a job of so many nodes needs more. ConfigError when the hard limit
// is too low for it.
void raise_open_files(const RendezvousOptions& options);

// How many strangers may be connected, with so many connected now: so few that this process can
// still open what its workers need.
int max_strangers_now(const RendezvousOptions& options, int strangers);

}  // namespace lockstep::launcher
