#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "comm/shm/layout.h"

namespace lockstep::comm::shm {

// A text that is equal for two processes exactly when they can map each other's memory: the
// running kernel, the namespaces of processes and users, and the user. A host name would not be
// enough: containers share and change it.
std::string host_identity();

// Bytes of a memory file (memfd) in this address space. A memory file has no name in a file system:
// it vanishes with the last process that holds it, however that process ends.
class Mapping {
 public:
  // New zeroed memory, allocated at once: a full machine causes a CommError here and never a SIGBUS
  // later.
  static Mapping create(size_t bytes);
  // The memory behind descriptor `fd` of process `pid`. Throws std::system_error.
  static Mapping open(pid_t pid, int fd, size_t bytes);

  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The descriptor that others open; -1 once closed, and for opened memory.
  int fd() const { return fd_.get(); }
  // Returns the pages to the machine, even if others have mapped them: they read zeros afterwards.
  // Only for memory from create(); a kernel without this feature keeps the pages.
  void release_pages() const;
  // No process can open the memory afterwards; those that have mapped it keep it.
  void close_fd() { fd_.reset(); }

 private:
  Mapping(base::UniqueFd fd, size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  base::UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Watches one process of this host, not necessarily a child.
class PeerProcess {
 public:
  // `start_time` in clock ticks since boot: the pid may go to another process.
  PeerProcess(pid_t pid, uint64_t start_time);

  pid_t pid() const { return pid_; }
  // One or two system calls. This process is always alive: its ranks are threads.
  bool alive() const;

 private:
  pid_t pid_;
  uint64_t start_time_;
  base::UniqueFd pid_fd_;  // empty: no pidfd in this kernel or sandbox; /proc is read instead
};

}  // namespace lockstep::comm::shm

namespace c10d {
class Store;
}

namespace lockstep::comm::shm {

// A rank of the group: its memory and its process.
struct Peer {
  std::shared_ptr<Mapping> memory;
  PeerProcess process;

  Home& home() const { return *reinterpret_cast<Home*>(memory->data()); }
  // Ranks that are threads of this process share one mapping, so that a thread sanitizer sees both
  // sides of every access.
  bool same_process() const;
};

// Creates this rank's home, announces it through the store, and maps the homes of the others.
// Collective; blocks until all ranks are there. The result is indexed by rank and contains this
// rank too.
//
// All ranks succeed or all throw: ConfigError if some rank cannot map another's memory (other host,
// other PID namespace, no permission), CommError if ranks do not come within the timeout.
std::vector<Peer> connect_peers(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace lockstep::comm::shm
