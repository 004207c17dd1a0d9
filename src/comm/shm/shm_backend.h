#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep::comm {

// A c10d backend over shared memory, for ranks that are processes of one host or threads of one
// process; CPU tensors only. Collective: blocks until `size` ranks have called it with the same
// store. 1 <= size <= 64. The store must not contain keys of other groups: give each group its own
// prefix.
//
// Throws, on all ranks alike, ConfigError if the ranks cannot share memory and CommError if not all
// came within the timeout, which is also the timeout of operations that set none.
//
// Operations
// - start without blocking and progress inside wait() and isCompleted(), in the calling thread;
//   they complete in the order in which they were started, except sends and receives. Used by one
//   thread at a time.
// - combine contributions in rank order: results are the same bits on all ranks, for any size.
// - throw ConfigError for a tensor that is not contiguous or not on the CPU, before anything is
//   published; CommError if ranks call different operations, or if a rank dies (noticed within
//   100 ms by ranks that wait), leaves, or does not arrive in time. The first CommError breaks the
//   group for ever on all ranks.
//
// allocateTensor() returns memory that collectives use in place; other tensors are copied through
// staging memory. Nothing has a name in a file system, so nothing is left behind however the ranks
// end.
c10::intrusive_ptr<c10d::Backend> make_shm_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                   std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
