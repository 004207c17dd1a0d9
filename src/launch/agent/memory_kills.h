#pragma once

#include <cstdint>
#include <string>

namespace lockstep::launcher {

// How many processes the kernel has killed for want of memory since it started; 0
// where it does not tell. A worker that ended by SIGKILL while the number grew was,
// in all likelihood, one of them.
int64_t count_memory_kills(const std::string& vmstat = "/proc/vmstat");

}  // namespace lockstep::launcher
