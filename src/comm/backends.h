#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "base/job_token.h"
#include "comm/host_layout.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

// The c10d backends that are part of this library, besides shm/shm_backend.h. transport.h says
// which calls they take and what they promise.
namespace lockstep::comm {

// The Work of an operation that was complete when it was started.
class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType operation) : Work(rank, operation) { finish(); }
};

// --- fake ---

// One rank of a world of any size, alone in one process, for dry runs. The other ranks contribute
// nothing: a reduction leaves this rank's contribution, a gather returns this rank's block once
// for every rank, and a receive leaves the tensor unchanged. For a world of one rank that is
// exact, so a group of one rank uses this backend too.
c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size);

// --- gloo ---

struct GlooOptions {
  std::chrono::milliseconds timeout;
  std::chrono::milliseconds connect_timeout;
  // Interface or address to use; empty: see choose_gloo_devices.
  std::string interface;
  // Host of the job's rendezvous; empty if there is none.
  std::string rendezvous_address;
  // Known only to the ranks of the job; null: some ranks may belong to another library. Gloo accepts
  // the first client of its port as the rank that it expects. With a secret every connection is
  // authenticated before it is used, a group in which another client has taken the place of a rank is
  // made again on other ports, and no port listens once the group is connected.
  std::shared_ptr<const base::JobToken> secret;
};

// c10d::ProcessGroupGloo, to which Python ranks may belong too, with an abort() that fails the
// pending and all later operations; abort() may be called from any thread. Blocks until all ranks
// are connected to each other.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options);

// --- hierarchical ---

// The groups that a hierarchical backend is composed of.
struct HierarchicalChannels {
  // The ranks of this host, by their order in the layout; null for a host of one. There are two
  // groups so that one collective can go up while another comes down.
  c10::intrusive_ptr<c10d::Backend> up;
  c10::intrusive_ptr<c10d::Backend> down;
  // The leaders of the hosts; null on other ranks.
  c10::intrusive_ptr<c10d::Backend> cross;
  // All ranks, for operations that gain nothing from the hierarchy.
  c10::intrusive_ptr<c10d::Backend> flat;
};

// CPU ranks on several hosts: shared memory inside a host, and one rank of each host on the
// network.
//
// A reduction combines the contributions of a host in rank order, then those of the hosts; every
// rank gets the same bits. gather, scatter and all_to_all use the flat group, as send and recv do
// between hosts. Used by one thread at a time, except abort(); operations progress inside wait()
// and isCompleted().
c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(int rank, HostLayout layout,
                                                            HierarchicalChannels channels,
                                                            std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
