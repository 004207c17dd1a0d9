#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::optim {

// Calls body(begin, end) for parts of [0, blocks) in the threads that LibTorch works with, and
// waits for all; in this thread alone inside of such work. at::parallel_for says the same, but
// its template runs in one thread where it is compiled without the OpenMP of LibTorch's own
// compiler, as this library is. `body` must not throw.
void for_blocks(int64_t blocks, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace lockstep::optim
