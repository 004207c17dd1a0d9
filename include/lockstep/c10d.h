#pragma once

// The bridge to c10d, for programs that bring their own store or want the group
// underneath: mixed jobs of C++ and Python ranks, tests, c10d's own classes.

#include <c10/util/intrusive_ptr.h>
#include <lockstep/communicator.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep {

// Opens the store that a job's ranks meet at. Blocks until it is reachable.
c10::intrusive_ptr<c10d::Store> open_store(const RankMap& map, std::chrono::milliseconds timeout);

// A group over any store. With backend "gloo" the others may be Python ranks that
// called init_process_group with the same store and prefix.
Communicator make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               const CommunicatorOptions& options = {});

// The c10d backend under a group; null for a group of one.
c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator);

}  // namespace lockstep
