#include "launch/slurm/log_follower.h"

#include <fcntl.h>

#include <cerrno>

namespace lockstep::launcher {

std::string LogFollower::read_new() {
  if (!file_) file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!file_) return text;
  char buffer[16384];
  while (true) {
    const ssize_t got = ::read(file_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace lockstep::launcher
