#pragma once

#include <cerrno>

namespace lockstep::base {

// Repeats a system call that a signal interrupted before it did anything. On network and FUSE file
// systems open, fsync and ftruncate can be, also where all handlers are installed with SA_RESTART.
template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace lockstep::base
