#pragma once

#include <sys/types.h>

#include <cstdint>

namespace lockstep::comm::shm {

// When a process started, in clock ticks since boot; 0 where no such process runs
// (a zombie does not run). With the pid it names a process for good.
uint64_t process_start_time(pid_t pid);

// Watches one process of this host, not necessarily a child.
class PeerProcess {
 public:
  PeerProcess(pid_t pid, uint64_t start_time);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  // One or two system calls. This process is always alive: its ranks are threads.
  bool alive() const;

 private:
  pid_t pid_;
  uint64_t start_time_;
  int pid_fd_ = -1;  // -1: the kernel or a sandbox has no pidfd; /proc is read instead
};

}  // namespace lockstep::comm::shm
