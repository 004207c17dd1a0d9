#include "comm/shm/peer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::comm::shm {

uint64_t process_start_time(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) {
    return 0;
  }
  // The second field is the program's name in parentheses and may hold anything:
  // count from its end. State is field 3, the start time field 22.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string state;
  std::string skipped;
  fields >> state;
  for (int field = 4; field < 22; ++field) {
    fields >> skipped;
  }
  uint64_t start_time = 0;
  fields >> start_time;
  return state == "Z" || state == "X" ? 0 : start_time;
}

PeerProcess::PeerProcess(pid_t pid, uint64_t start_time) : pid_(pid), start_time_(start_time) {
  if (pid != getpid()) {
    pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    // Between the peer's hello and here its pid may have gone to someone else.
    if (pid_fd_ >= 0 && process_start_time(pid) != start_time) {
      close(std::exchange(pid_fd_, -1));
    }
  }
}

PeerProcess::~PeerProcess() {
  if (pid_fd_ >= 0) {
    close(pid_fd_);
  }
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(other.pid_), start_time_(other.start_time_), pid_fd_(std::exchange(other.pid_fd_, -1)) {}

bool PeerProcess::alive() const {
  if (pid_ == getpid()) {
    return true;
  }
  if (pid_fd_ < 0) {
    return process_start_time(pid_) == start_time_;
  }
  pollfd polled{pid_fd_, POLLIN, 0};
  return poll(&polled, 1, 0) == 0 || (polled.revents & (POLLIN | POLLHUP)) == 0;
}

}  // namespace lockstep::comm::shm
