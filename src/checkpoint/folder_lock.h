#pragma once

#include <filesystem>

#include "base/unique_fd.h"

namespace lockstep::checkpoint {

// Holds the file `lock` of a folder by flock(2) as long as it lives: two runs never write
// into one folder. The kernel lets it go when the process ends, however that happens; the
// file stays.
class FolderLock {
 public:
  // ConfigError with the host and the process that hold it.
  explicit FolderLock(const std::filesystem::path& folder);

  // False on a file system without locks, which is said in a warning: then nothing is
  // known about other writers.
  bool held() const { return static_cast<bool>(fd_); }

 private:
  base::UniqueFd fd_;
};

}  // namespace lockstep::checkpoint
