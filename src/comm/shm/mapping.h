#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace lockstep::comm::shm {

// Bytes of a memory file (memfd) in this address space. A memory file has no name
// in any file system: it vanishes with the last process that holds it, however
// that process ends.
class Mapping {
 public:
  // New zeroed memory, allocated now: a full machine is a CommError here and never
  // a SIGBUS later.
  static Mapping create(size_t bytes);
  // The memory behind descriptor `fd` of process `pid`. Throws std::system_error.
  static Mapping open(pid_t pid, int fd, size_t bytes);

  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The descriptor that others open; -1 once closed, and for opened memory.
  int fd() const { return fd_; }
  // Gives the pages back to the machine, also where others have mapped them: whoever reads them
  // then sees zeros. Only a mapping that was created; a kernel that cannot leaves them.
  void release_pages() const;
  // From here on nobody can open it; those who have it keep it.
  void close_fd();

 private:
  Mapping(int fd, std::byte* data, size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}

  int fd_ = -1;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lockstep::comm::shm
