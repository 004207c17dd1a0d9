#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/mapping.h"
#include "comm/shm/peer_process.h"

namespace c10d {
class Store;
}

namespace lockstep::comm::shm {

// A rank of the group, as every rank sees it.
struct Peer {
  std::shared_ptr<Mapping> memory;
  PeerProcess process;

  Home& home() const { return *reinterpret_cast<Home*>(memory->data()); }
  // Ranks that are threads of this process share one mapping, so that a thread
  // sanitizer sees both sides of every access.
  bool same_process() const;
};

// Creates this rank's home, tells the others through the store, and maps theirs.
// Collective; blocks until all ranks are there. The result is indexed by rank and
// holds this rank too.
//
// All ranks succeed or all throw: ConfigError when some rank cannot reach another's
// memory (other host, other PID namespace, no permission), CommError when ranks do
// not come within the timeout.
std::vector<Peer> meet(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace lockstep::comm::shm
