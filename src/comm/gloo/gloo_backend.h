#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/job_token.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep::comm {

struct GlooOptions {
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds connect_timeout;
  // Interface or address to use; empty: see choose_gloo_devices.
  std::string interface;
  // Host of the job's rendezvous; empty where there is none.
  std::string rendezvous_address;
  // What the ranks of the job alone know; null: others may be of another library. Gloo itself
  // takes whoever comes to its port first for the rank that it expects. With a secret every
  // connection is proven before it is used, a group in which a stranger has taken a place is
  // made anew, and no port listens any more once it stands.
  std::shared_ptr<const base::JobToken> secret;
};

// c10d::ProcessGroupGloo, to which Python ranks may belong too, with abort(): it
// fails what is pending and every later operation, from any thread. Blocks until
// all ranks are connected to each other.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options);

}  // namespace lockstep::comm
