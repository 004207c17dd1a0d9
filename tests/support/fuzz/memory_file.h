#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/unique_fd.h"

namespace lockstep::fuzz {

// A file in memory with a path, for readers that take paths: thousands of writes a second cost
// no disk. Readers of the file before it is written again must be gone.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_) throw std::system_error(errno, std::generic_category(), "memfd_create");
    path_ = "/proc/self/fd/" + std::to_string(fd_.get());
  }

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }

  const std::filesystem::path& write(std::string_view bytes) {
    if (::ftruncate(fd_.get(), 0) != 0) throw std::system_error(errno, std::generic_category(), "ftruncate");
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t written =
          ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
      if (written < 0) throw std::system_error(errno, std::generic_category(), "pwrite");
      done += static_cast<size_t>(written);
    }
    return path_;
  }

 private:
  base::UniqueFd fd_;
  std::filesystem::path path_;
};

}  // namespace lockstep::fuzz
