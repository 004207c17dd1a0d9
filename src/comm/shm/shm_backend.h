#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep::comm {

// A c10d backend over shared memory, for ranks that are processes of one host or
// threads of one process; CPU tensors only. Collective: blocks until `size` ranks
// have called it with the same store. 1 <= size <= 64. The store must be empty of
// other groups' keys: give each group its own prefix.
//
// Throws, on all ranks alike, ConfigError where the ranks cannot share memory and
// CommError where not all came within the timeout, which is also that of every
// operation without its own.
//
// Operations
// - start without blocking and go on inside wait() and isCompleted(), in the
//   calling thread; they complete in the order in which they were started, sends
//   and receives apart. One thread at a time.
// - combine contributions in the order of the ranks: results are the same bits on
//   all ranks, whatever the size.
// - throw ConfigError for a tensor that is not contiguous or not on the CPU, before
//   anything is published; CommError when ranks disagree on the operation, when one
//   dies (noticed within 100 ms by those who wait), leaves, or does not arrive in
//   time. The first CommError breaks the group for good on all ranks.
//
// allocateTensor() gives memory that collectives use in place; other tensors are
// copied through staging memory. Nothing has a name in a file system, so nothing is
// left behind however the ranks end.
c10::intrusive_ptr<c10d::Backend> make_shm_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                   std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
