#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::checkpoint {

// Calls `work` once for each of 0 .. count-1, in about this order, from this thread and threads - 1
// others. threads = 0: one for each CPU of the process, 8 at most. Blocks until all threads are done.
// After an exception no further calls start, and the first exception is thrown here.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace lockstep::checkpoint
