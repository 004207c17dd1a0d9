#pragma once

// Connects a Communicator with c10d, LibTorch's own layer for collectives: groups over any c10d store,
// groups that contain Python ranks, and access to the c10d backend of a group. Programs of C++ ranks
// alone do not need it.
//
// Example:
//
//   #include <torch/csrc/distributed/c10d/FileStore.hpp>
//
//   const auto store = c10::make_intrusive<c10d::FileStore>("store", world.size());
//   const lockstep::Communicator group =
//       lockstep::make_communicator(store, world.rank(), world.size(), {.backend = "gloo"});
//   group.barrier();
//
// More: docs/comm.md

#include <c10/util/intrusive_ptr.h>
#include <lockstep/communicator.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep {

// Opens c10d's store at the rendezvous of the job, for jobs with Python ranks. Everyone who can reach
// its port can read and write it (docs/security.md); Communicator::connect() uses an authenticated
// store instead if the ranks have a secret. Blocks until the store is reachable and, on the rank that
// hosts it, until all ranks have connected. CommError names the address, the expected host of the store
// and what was tried. ConfigError: the map has no rendezvous, or its file cannot be used.
c10::intrusive_ptr<c10d::Store> open_store(const RankMap& map, std::chrono::milliseconds timeout);

// Makes a group over any store. Collective; blocks until all ranks have called it. No other group may
// use the same keys: give each group a c10d::PrefixStore of its own. With backend "gloo" the other
// ranks may be Python's. The group has no lifeline, so an error may not name the rank that is gone.
// ConfigError: as Communicator::connect().
Communicator make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               const CommunicatorOptions& options = {});

// The view of a job's store that the default group of PyTorch 2.11 to 2.15 uses, if Python called
// init_process_group("gloo") with an init_method or with the environment. make_communicator() with this
// store and backend "gloo" joins that group.
c10::intrusive_ptr<c10d::Store> python_default_group(c10::intrusive_ptr<c10d::Store> store);

// The c10d backend of a group; null for a group of one without a backend.
c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator);

}  // namespace lockstep
