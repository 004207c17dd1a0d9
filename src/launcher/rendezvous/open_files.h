#pragma once

#include "launcher/rendezvous/options.h"

namespace lockstep::launcher {

// Raises the soft limit of open files of a launcher, which needs them for connections, workers
// and logs.
void raise_open_files();
// The same for the launcher that hosts the coordinator, which needs one per node. ConfigError:
// the hard limit is too low for max_nodes.
void raise_open_files(const RendezvousOptions& options);

// How many strangers may be connected, given the number connected now, so that this process can
// still open the files that its workers need.
int max_strangers_now(const RendezvousOptions& options, int strangers);

}  // namespace lockstep::launcher
