#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::checkpoint {

// A file that is read. Not a regular file, missing, shorter than it was when it was
// opened: CheckpointError with the path and the reason. Reads may run in several threads.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  int64_t bytes() const { return bytes_; }

  void read(void* to, int64_t bytes, int64_t offset) const;
  // The same, and the checksum of what came, in one pass.
  std::string read_and_sum(void* to, int64_t bytes, int64_t offset) const;
  // The checksum of these bytes.
  std::string sum(int64_t bytes, int64_t offset) const;

 private:
  std::filesystem::path path_;
  base::UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep::checkpoint
