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

// Opens c10d's store at the place where a job's ranks meet, for jobs with Python ranks: it is open
// to everyone who can reach its port (docs/security.md). Communicator::connect() uses another
// one, where the ranks have a secret. Blocks until it is reachable and, on
// the rank that hosts it, until all ranks came. CommError tells the address, who is
// expected to host it, and what was tried; ConfigError: no rendezvous, or a file
// that cannot be used.
c10::intrusive_ptr<c10d::Store> open_store(const RankMap& map, std::chrono::milliseconds timeout);

// A group over any store, which must be empty of other groups' keys: give each its
// own prefix. Collective. With backend "gloo" the others may be Python ranks. No
// lifeline is made, so an error may not know which rank is gone.
Communicator make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               const CommunicatorOptions& options = {});

// The part of a job's store at which the default group of PyTorch 2.11 to 2.15 meets, where
// Python called init_process_group("gloo") with an init_method or the environment:
// make_communicator with it and backend "gloo" joins that group.
c10::intrusive_ptr<c10d::Store> python_default_group(c10::intrusive_ptr<c10d::Store> store);

// The c10d backend under a group; null for a group of one that asked for none.
c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator);

}  // namespace lockstep
