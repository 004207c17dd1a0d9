#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::checkpoint {

// Calls `work` for 0 .. count-1, each once, in about this order, from this thread and
// threads - 1 more; 0: one for each CPU of the process, 8 at most. The first exception
// ends it and is thrown here, when all threads are back.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace lockstep::checkpoint
